package api

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	// pingAfter is how long nothing has to come over an HTTP/2 connection until it is asked for a sign of life, and pingTimeout how
	// long that may take, and each write.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// NewServer makes the server to serve the API with. Its Shutdown ends streams and waits, see [API.Drain].
//
// It speaks HTTP/1.1 and, to those who begin with it, HTTP/2 without TLS: whatever speaks TLS for the API can bring the streams of
// many clients over a few connections. It neither sets a time for whole answers nor compresses any, as streams need it.
func (a *API) NewServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: a, Protocols: protocols, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout,
		// A write deadline ends a stream. That nobody is behind a connection any more, which may have many, shows by these.
		HTTP2:    &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: pingTimeout},
		ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelWarn)}
	server.RegisterOnShutdown(a.Drain)
	return server
}

// CheckListen refuses an address that others than this machine can reach. It is for an API without tokens, whose operator
// is whoever reaches it.
func CheckListen(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q: want host:port, as in 127.0.0.1:8080: %w", addr, err)
	}
	if !isLoopback(host) {
		return fmt.Errorf("listen address %q: without tokens the API serves loopback only; configure auth.tokens, or use 127.0.0.1, [::1] or localhost", addr)
	}
	return nil
}
