package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// watcher follows a run.
type watcher struct {
	events, words []float64 // ms
	completed     bool
}

// shown is what a watcher needs of a frame's object.
type shown struct {
	Type      string    `json:"event_type"`
	CreatedAt time.Time `json:"created_at"`
	Data      struct {
		// Text is a piece of model output, or with Through all that a client that joins has missed.
		Text    string `json:"text"`
		Through int    `json:"through"`
	} `json:"data"`
}

// watch follows a stream to its end.
func (w *watcher) watch(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	began := time.Now()
	scan := bufio.NewScanner(res.Body)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		object, ok := bytes.CutPrefix(scan.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		seen := time.Now()
		var e shown
		if err := json.Unmarshal(object, &e); err != nil {
			return fmt.Errorf("%s: %q: %w", url, object, err)
		}
		w.completed = w.completed || e.Type == "run_completed"
		if e.Type == "chat_delta" {
			if e.Data.Through > 0 {
				continue
			}
			for _, word := range strings.Fields(e.Data.Text) {
				said, err := strconv.ParseInt(word, 10, 64)
				if err != nil {
					return fmt.Errorf("the model said %q", word)
				}
				w.words = append(w.words, milliseconds(seen.Sub(time.Unix(0, said))))
			}
			continue
		}
		if e.CreatedAt.After(began) { // what was there before is no news
			w.events = append(w.events, milliseconds(seen.Sub(e.CreatedAt)))
		}
	}
	return scan.Err()
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
