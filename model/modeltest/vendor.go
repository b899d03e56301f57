package modeltest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Vendor is a server that gives one recorded answer to every request.
//
// A recording is a file as it goes over the wire: status line, headers, an empty line, the body; lines may end in a bare
// newline. The body is sent event by event. Three things are put in:
//
//	{{key}}   the credential that the client sent, as vendors like to quote it
//	: hang    a line of its own: nothing more comes, until the client goes away
//	: cut     a line of its own: the connection is reset there; as the first line of the file, before any byte
type Vendor struct {
	// URL is the server's address, without a slash at the end.
	URL string

	mu       sync.Mutex
	received []Received
}

// Received is a request as the vendor got it.
type Received struct {
	Path   string
	Header http.Header
	Body   []byte
}

// NewVendor starts a server that answers with the recording; it is closed with the test.
func NewVendor(t testing.TB, recording string) *Vendor {
	t.Helper()
	raw, err := os.ReadFile(filepath.Clean(recording))
	if err != nil {
		t.Fatalf("no recording for this scenario: %v", err)
	}
	v := &Vendor{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		v.mu.Lock()
		v.received = append(v.received, Received{Path: r.URL.Path, Header: r.Header.Clone(), Body: body})
		v.mu.Unlock()
		if err := play(w, r, raw); err != nil && r.Context().Err() == nil {
			t.Errorf("recording %s: %v", recording, err)
		}
	}))
	t.Cleanup(server.Close)
	v.URL = server.URL
	return v
}

// Received lists the requests so far.
func (v *Vendor) Received() []Received {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]Received(nil), v.received...)
}

// Nowhere is the address of a server that is not there: connections to it are refused.
func Nowhere(t testing.TB) string {
	t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	return server.URL
}

func play(w http.ResponseWriter, r *http.Request, raw []byte) error {
	if bytes.HasPrefix(raw, []byte(": cut")) {
		return reset(w)
	}
	recorded, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), r)
	if err != nil {
		return err
	}
	defer recorded.Body.Close()
	body, err := io.ReadAll(recorded.Body)
	if err != nil {
		return err
	}
	body = bytes.ReplaceAll(body, []byte("{{key}}"), []byte(credential(r.Header)))
	for name, values := range recorded.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(recorded.StatusCode)
	flush := http.NewResponseController(w)
	for _, line := range bytes.SplitAfter(body, []byte("\n")) {
		switch strings.TrimSpace(string(line)) {
		case ": hang":
			if err := flush.Flush(); err != nil {
				return err
			}
			<-r.Context().Done()
			return nil
		case ": cut":
			if err := flush.Flush(); err != nil {
				return err
			}
			return reset(w)
		}
		if _, err := w.Write(line); err != nil {
			return nil //nolint:nilerr // the client has heard enough
		}
		if len(bytes.TrimSpace(line)) == 0 {
			_ = flush.Flush()
		}
	}
	return nil
}

// credential is what the client proved itself with, by any vendor's header.
func credential(h http.Header) string {
	for _, name := range []string{"X-Api-Key", "X-Goog-Api-Key", "Api-Key"} {
		if key := h.Get(name); key != "" {
			return key
		}
	}
	return strings.TrimPrefix(h.Get("Authorization"), "Bearer ")
}

// reset ends the connection the hard way.
func reset(w http.ResponseWriter) error {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil {
			return errors.Join(err, conn.Close())
		}
	}
	return conn.Close()
}

// statusLine writes the first line of a recording, for tests that make their own.
func statusLine(status int) string {
	return "HTTP/1.1 " + strconv.Itoa(status) + " " + http.StatusText(status) + "\n"
}

// Recording writes a recording to a file of the test: a status, headers in pairs, a body.
func Recording(t testing.TB, status int, body string, headers ...string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(statusLine(status))
	for i := 0; i+1 < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\n", headers[i], headers[i+1])
	}
	b.WriteString("\n" + body)
	path := filepath.Join(t.TempDir(), "recording.http")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
