package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxEvents is how many events a run may have.
const maxEvents = 1 << 16

// crowd are clients that count together who has which event.
type crowd struct {
	n    int32
	seen [maxEvents]atomic.Int32
	said chan string
}

// follow is all clients in one process. args are how many they are and what they ask for.
func follow(args string) error {
	number, target, _ := strings.Cut(args, " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	address, path, ok := strings.Cut(strings.TrimPrefix(target, "http://"), "/")
	if !ok {
		return fmt.Errorf("not a URL: %q", target)
	}
	c := &crowd{n: int32(n), said: make(chan string, maxEvents)} //nolint:gosec // small
	errs := make(chan error, n)
	var began sync.WaitGroup
	began.Add(n)
	// Not all at once, as a listener keeps only so many waiting.
	slots := make(chan struct{}, 64)
	for range n {
		go func() {
			slots <- struct{}{}
			errs <- c.one(address, "/"+path, func() {
				<-slots
				began.Done()
			})
		}()
	}
	ready := make(chan struct{})
	go func() {
		began.Wait()
		close(ready)
	}()
	over := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		over <- err
	}()
	for {
		select {
		case <-ready:
			fmt.Println("ready")
			ready = nil
		case line := <-c.said:
			fmt.Println(line)
		case err := <-errs:
			return fmt.Errorf("a stream ended: %w", err)
		case err := <-over:
			return err
		}
	}
}

// one is one client. began is called once it has the beginning of its answer.
func (c *crowd) one(address, path string, began func()) error {
	conn, err := net.DialTimeout("tcp", address, 30*time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n\r\n", path, address); err != nil {
		return err
	}
	buf := make([]byte, 8<<10)
	var line []byte // the beginning of a line whose end has not come yet
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		if began != nil {
			if !bytes.HasPrefix(buf[:n], []byte("HTTP/1.1 200 ")) {
				return errors.New(string(buf[:min(n, 300)]))
			}
			began()
			began = nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				line = append(line, rest[:min(len(rest), 32)]...) // an id is not longer
				break
			}
			if len(line) > 0 {
				line = append(line, rest[:end]...)
				c.line(line)
				line = line[:0]
			} else {
				c.line(rest[:end])
			}
			rest = rest[end+1:]
		}
	}
}

func (c *crowd) line(line []byte) {
	number, ok := bytes.CutPrefix(line, []byte("id: "))
	if !ok {
		return
	}
	id, err := strconv.Atoi(string(number))
	if err != nil || id >= maxEvents {
		return
	}
	if c.seen[id].Add(1) == c.n {
		c.said <- fmt.Sprint(id, " ", time.Now().UnixNano())
	}
}
