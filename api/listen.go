package api

import (
	"fmt"
	"net"
)

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
