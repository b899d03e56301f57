package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"

	"runtime/debug"
	"strings"
	"sync"

	"runledger/bench"
	"runledger/ledger"
)

// The parts of this program's children.
const (
	partAPI     = "api"
	partBare    = "bare"
	partClients = "clients"
)

func lines(from io.Reader, do func(line string) error) error {
	in := bufio.NewScanner(from)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if err := do(in.Text()); err != nil {
			return err
		}
	}
	return in.Err()
}

func collect() {
	debug.FreeOSMemory()
	fmt.Println("collected")
}

// serveAPI is the server that is measured. args are the database and a file for a profile.
func serveAPI(args string) (err error) {
	ctx := context.Background()
	database, profile, _ := strings.Cut(args, " ")
	l, err := ledger.Open(ctx, database, ledger.Options{})
	if err != nil {
		return err
	}
	defer l.Close()
	handler, err := bench.NewAPI(l)
	if err != nil {
		return err
	}
	url, stop, err := bench.Serve(ctx, handler)
	if err != nil {
		return err
	}
	end, err := bench.Profile(profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(), stop()) }()
	fmt.Println(url)
	return listen(func(string) error {
		collect()
		return nil
	})
}

// broadcast is what a bare handler has to send, and wakes whoever sends it.
type broadcast struct {
	mu      sync.Mutex
	frames  [][]byte
	changed chan struct{}
}

func (b *broadcast) send(frame []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frames = append(b.frames, frame)
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *broadcast) after(place int) ([][]byte, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.frames[place:], b.changed
}

// ServeHTTP writes what comes, from now on.
func (b *broadcast) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	b.mu.Lock()
	place := len(b.frames)
	b.mu.Unlock()
	if _, err := io.WriteString(w, "retry: 1000\n\n"); err != nil || control.Flush() != nil {
		return
	}
	for {
		frames, changed := b.after(place)
		place += len(frames)
		for _, f := range frames {
			if _, err := w.Write(f); err != nil {
				return
			}
		}
		if len(frames) > 0 && control.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// serveBare is the server that is the limit.
func serveBare(string) (err error) {
	b := &broadcast{changed: make(chan struct{})}
	url, stop, err := bench.Serve(context.Background(), b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	fmt.Println(url)
	return listen(func(line string) error {
		text, send := strings.CutPrefix(line, "send ")
		if !send {
			collect()
			return nil
		}
		frame, err := base64.StdEncoding.DecodeString(text)
		if err == nil {
			b.send(frame)
		}
		return err
	})
}
