package streams_test

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// unruly is a proxy between clients and API processes as bad as networks get: it cuts connections in the middle of what they carry, with
// and without telling either side, delays, holds bytes back and lets them go in bursts. What happens to a connection depends on the seed
// and on its number only.
type unruly struct {
	listener net.Listener
	backends []string
	seed     uint64
	// silence is how long a client that was cut off without being told is left in that belief, 0 for as long as it likes.
	silence time.Duration
	// calm is closed when nothing more is to happen, over when the test is.
	calm, over chan struct{}
	links      sync.WaitGroup
	// accepted is sent the number of connections so far, as long as somebody takes it.
	accepted chan int64

	// What has happened: cuts, those of them in the middle of a frame or of a request, those that one side was not told of, ...
	connections, refused, cuts, midFrame, midRequest, clientHalf, serverHalf, delays, bursts atomic.Int64
}

// ending is how a connection is cut.
type ending int

const (
	reset           ending = iota // both sides get an RST
	closed                        // both sides get a FIN
	clientIsNotTold               // the server is told, the client waits for ever
	serverIsNotTold               // the client is told, the server writes to nobody
)

// fate is what happens to a connection.
type fate struct {
	// A cut comes after so many bytes of the answer or of the request, or after so long. 0 is never.
	answerBytes, requestBytes int
	after                     time.Duration
	how                       ending
	// held is how long bytes are held back at most. What has gathered by then goes at once.
	held time.Duration
}

func fateOf(r *rand.Rand) (f fate) {
	switch p := r.IntN(100); {
	case p < 15: // it lives
	case p < 75:
		f.answerBytes = int(300 * math.Pow(200, r.Float64())) // 300 to 60,000
	case p < 95:
		f.after = time.Millisecond * time.Duration(100+r.IntN(4000))
	default:
		f.requestBytes = 1 + r.IntN(150)
	}
	switch p := r.IntN(100); {
	case p < 40:
		f.how = reset
	case p < 75:
		f.how = closed
	case p < 90:
		f.how = clientIsNotTold
	default:
		f.how = serverIsNotTold
	}
	switch p := r.IntN(100); {
	case p < 40:
	case p < 80:
		f.held = time.Millisecond * time.Duration(1+r.IntN(100))
	default:
		f.held = time.Millisecond * time.Duration(200+r.IntN(1300))
	}
	return f
}

func startUnruly(t testing.TB, seed uint64, silence time.Duration, backends ...string) *unruly {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	u := &unruly{listener: l, backends: backends, seed: seed, silence: silence, calm: make(chan struct{}), over: make(chan struct{}), accepted: make(chan int64)}
	u.links.Go(u.accept)
	t.Cleanup(func() {
		_ = l.Close()
		close(u.over)
		u.links.Wait()
	})
	return u
}

func (u *unruly) url() string { return "http://" + u.listener.Addr().String() }

func (u *unruly) accept() {
	for {
		client, err := u.listener.Accept()
		if err != nil {
			return
		}
		n := u.connections.Add(1)
		select {
		case u.accepted <- n:
		default: // nobody counts at the moment
		}
		r := rand.New(rand.NewPCG(u.seed, uint64(n)))
		backend := u.backends[r.IntN(len(u.backends))]
		f := fateOf(r)
		select {
		case <-u.calm:
			f = fate{}
		default:
		}
		u.links.Go(func() {
			server, err := net.Dial("tcp", backend)
			if err != nil {
				u.refused.Add(1)
				_ = client.Close()
				return
			}
			l := &unrulyLink{unruly: u, fate: f, client: client.(*net.TCPConn), server: server.(*net.TCPConn), end: make(chan struct{})}
			l.serve()
		})
	}
}

// unrulyLink is a connection through the proxy.
type unrulyLink struct {
	*unruly
	fate           fate
	client, server *net.TCPConn
	// end is closed when the request's side has come to its end: the client has left, or was cut off in the middle of what it asked.
	end chan struct{}
	// tail is the end of what the client was sent.
	tail []byte
}

func (l *unrulyLink) serve() {
	var both sync.WaitGroup
	both.Go(l.requests)
	l.answers()
	_ = l.client.Close()
	_ = l.server.Close()
	both.Wait()
}

// requests passes on what the client says.
func (l *unrulyLink) requests() {
	defer close(l.end)
	if n := int64(l.fate.requestBytes); n > 0 {
		if sent, err := io.CopyN(l.server, l.client, n); sent == n && err == nil {
			l.midRequest.Add(1)
		}
		return
	}
	_, _ = io.Copy(l.server, l.client)
}

// answers passes on what the server says, until the connection has met its fate.
func (l *unrulyLink) answers() {
	f := l.fate
	left := f.answerBytes
	chunks, done := make(chan []byte), make(chan struct{})
	defer close(done)
	l.links.Go(func() { l.read(chunks, done) })
	var cut, release <-chan time.Time
	if f.after > 0 {
		cut = time.After(f.after)
	}
	calm := l.calm
	var held [][]byte
	for {
		select {
		case chunk, ok := <-chunks:
			if !ok {
				_, _ = l.client.Write(bytes.Join(held, nil))
				return
			}
			if held = append(held, chunk); release == nil {
				release = time.After(f.held)
			}
			continue
		case <-release:
		case <-calm:
			calm, cut, left, f.held = nil, nil, 0, 0
			continue
		case <-cut:
			l.cut(f.how)
			return
		case <-l.end: // the client has left
			if f.requestBytes > 0 {
				l.cut(reset)
			}
			return
		case <-l.over:
			return
		}
		release = nil
		if f.held > 0 {
			l.delays.Add(1)
		}
		if len(held) > 1 {
			l.bursts.Add(1)
		}
		burst := bytes.Join(held, nil)
		held = nil
		if ends := left > 0 && len(burst) >= left; ends {
			if _, err := l.client.Write(burst[:left]); err == nil {
				l.tail = burst[:left]
				l.cut(f.how)
			}
			return
		}
		if _, err := l.client.Write(burst); err != nil {
			return
		}
		l.tail = burst
		if left > 0 {
			left -= len(burst)
		}
	}
}

func (l *unrulyLink) read(chunks chan<- []byte, done <-chan struct{}) {
	defer close(chunks)
	for {
		buf := make([]byte, 4<<10)
		n, err := l.server.Read(buf)
		if n > 0 {
			select {
			case chunks <- buf[:n]:
			case <-done:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut ends the connection, or one side of it.
func (l *unrulyLink) cut(how ending) {
	l.cuts.Add(1)
	if len(l.tail) > 0 && !bytes.HasSuffix(l.tail, []byte("\n\n\r\n")) && !bytes.HasSuffix(l.tail, []byte("\n\n")) { // the end of a frame, and of the chunk it is in
		l.midFrame.Add(1)
	}
	switch how {
	case reset:
		_ = l.client.SetLinger(0)
		_ = l.server.SetLinger(0)
	case closed:
	case clientIsNotTold:
		l.clientHalf.Add(1)
		_ = l.server.Close()
		l.wait(l.silence, l.end)
	case serverIsNotTold:
		l.serverHalf.Add(1)
		_ = l.client.Close()
		l.wait(5*time.Second, nil)
	}
}

// wait lets one side be for a time, 0 for as long as it stays.
func (l *unrulyLink) wait(d time.Duration, left <-chan struct{}) {
	var enough <-chan time.Time
	if d > 0 {
		enough = time.After(d)
	}
	select {
	case <-enough:
	case <-left:
	case <-l.over:
	}
}
