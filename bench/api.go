package bench

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"runledger/agent"
	"runledger/api"
	"runledger/ledger"
	"runledger/tool"
)

// NewAPI makes the API as it is in production, but for a bound of the streams of a client that benchmarks would meet.
func NewAPI(l *ledger.Ledger) (http.Handler, error) {
	return api.New(api.Config{Ledger: l, AnyHost: true, Logger: slog.New(slog.DiscardHandler), Agents: []agent.Blueprint{{Name: "default"}},
		CheckPlans: tool.CheckPlans, EditArguments: tool.EditCall, MaxStreams: 1 << 20})
}

// Serve serves a handler on a free port of loopback, with the settings of `runledger api`, until stop is called.
func Serve(ctx context.Context, handler http.Handler) (url string, stop func() error, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() error {
		err := server.Close()
		if cause := <-served; !errors.Is(cause, http.ErrServerClosed) {
			err = errors.Join(err, cause)
		}
		return err
	}, nil
}
