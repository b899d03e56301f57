package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// metricsPatience is how long a scraper may take to say what it wants.
const metricsPatience = 10 * time.Second

// serveMetrics answers GET /metrics at an address, if there is one, until stop is called. There are numbers only, so that no token is asked for.
func serveMetrics(ctx context.Context, address string, handler http.Handler, log *slog.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics on %s: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: metricsPatience, IdleTimeout: 2 * time.Minute, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.WarnContext(ctx, "metrics are no longer served", "error", err)
		}
	}()
	log.InfoContext(ctx, "metrics are up", "url", "http://"+listener.Addr().String()+"/metrics")
	return func() {
		_ = server.Close()
		<-served
	}, nil
}
