package faults_test

import (
	"bufio"
	"bytes"
	bigendian "encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between a worker and its Postgres, and breaks what goes over it.
type proxy struct {
	upstream string
	listener net.Listener
	// refused hears of every connection that the database did not take, lost of every commit whose answer was lost.
	refused chan struct{}
	lost    chan string

	mu    sync.Mutex
	links map[*link]bool
	lose  map[string]bool
}

// link is a connection through the proxy. said is what the client has said since its last transaction.
type link struct {
	client, server net.Conn
	mu             sync.Mutex
	said           []byte
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// startProxy makes a proxy to the database and returns it with the database's URL by way of it.
func startProxy(t testing.TB, databaseURL string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	p := &proxy{upstream: u.Host, refused: make(chan struct{}, 4096), lost: make(chan string, 4096), links: map[*link]bool{}, lose: map[string]bool{}}
	p.listener, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go p.accept()
	t.Cleanup(func() { _ = p.listener.Close(); p.cut() })
	u.Host, u.RawQuery = p.listener.Addr().String(), "sslmode=disable"
	return p, u.String()
}

// cut ends every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// loseCommits lets the next transaction that names each of the texts commit, and then ends its connection instead of
// passing on the answer.
func (p *proxy) loseCommits(texts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range texts {
		p.lose[text] = true
	}
}

// loses tells whether the answer to a commit is to be lost, because of what the transaction said.
func (p *proxy) loses(said []byte) (text string, loses bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for text := range p.lose {
		if bytes.Contains(said, []byte(text)) {
			delete(p.lose, text)
			return text, true
		}
	}
	return "", false
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			_ = client.Close()
			select {
			case p.refused <- struct{}{}:
			default: // nobody counts any more
			}
			continue
		}
		l := &link{client: client, server: server}
		p.mu.Lock()
		p.links[l] = true
		p.mu.Unlock()
		go p.serve(l)
	}
}

func (p *proxy) serve(l *link) {
	go func() {
		defer l.close()
		p.answers(l)
	}()
	defer func() {
		l.close()
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		l.said = append(l.said, buf[:n]...)
		l.mu.Unlock()
		if _, err := l.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// answers passes on the server's messages: a byte that says what it is, four with the length of the rest, which they count in. A
// transaction is committed when its COMMIT is complete; or, if it is one batch with no BEGIN, when the server is ready for the next.
func (p *proxy) answers(l *link) {
	const commandComplete, readyForQuery, failed = 'C', 'Z', 'E'
	in := bufio.NewReader(l.server)
	wrote := false
	for {
		head := make([]byte, 5)
		if _, err := io.ReadFull(in, head); err != nil {
			return
		}
		body := make([]byte, bigendian.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		idle := head[0] == readyForQuery && string(body) == "I"
		l.mu.Lock()
		said := l.said
		if idle {
			l.said = nil
		}
		l.mu.Unlock()
		if head[0] == commandComplete {
			wrote = wrote || bytes.HasPrefix(body, []byte("INSERT")) || bytes.HasPrefix(body, []byte("UPDATE"))
		}
		committed := head[0] == commandComplete && string(body) == "COMMIT\x00" || idle && wrote
		if idle || head[0] == failed {
			wrote = false
		}
		if committed {
			if text, loses := p.loses(said); loses {
				l.close()
				p.lost <- text
				return
			}
		}
		if _, err := l.client.Write(append(head, body...)); err != nil {
			return
		}
	}
}
