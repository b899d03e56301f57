package main

import (
	"context"
	"log/slog"

	"runledger/api"
	"runledger/auth"
	"runledger/ledger"
	"runledger/metrics"
	"runledger/tool"
	"runledger/verify"
	"runledger/worker"
)

// newAPI makes the API. anyHost is for addresses that others than this machine reach, without tokens.
func newAPI(cfg *config, store *ledger.Ledger, verifier api.Verifier, keys *auth.Keyring, counts *metrics.Metrics, log *slog.Logger, anyHost bool) (*api.API, error) {
	handler, err := api.New(api.Config{Ledger: store, Agents: cfg.blueprints(), Models: cfg.modelRefs(), CheckPlans: tool.CheckPlans, EditArguments: tool.EditCall, Verifier: verifier, Tokens: keys, AnyHost: anyHost,
		CORSOrigins: cfg.API.CORSOrigins, MaxStreams: cfg.API.MaxStreams, Metrics: counts.Handler(), Logger: log})
	if err == nil {
		counts.ShowStreams(handler.Streams)
	}
	return handler, err
}

// openCounted opens a ledger whose work is counted.
func openCounted(ctx context.Context, url string, log *slog.Logger) (*ledger.Ledger, *metrics.Metrics, error) {
	counts := metrics.New(log)
	store, err := ledger.Open(ctx, url, ledger.Options{Log: log, Meter: counts})
	if err == nil {
		counts.ShowLedger(store)
	}
	return store, counts, err
}

// newVerifier makes the verifier, with Temporal as a witness where there is an address. Temporal may be away, then and later.
func newVerifier(store *ledger.Ledger, address, namespace string, log *slog.Logger) (v *verify.Verifier, closeAll func(), err error) {
	v = &verify.Verifier{Ledger: store}
	if address == "" {
		return v, func() {}, nil
	}
	temporal, err := worker.DialLazy(address, namespace, log)
	if err != nil {
		return nil, nil, err
	}
	v.Temporal = temporal
	return v, temporal.Close, nil
}
