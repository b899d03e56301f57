package devstack

import (
	"fmt"
	"net"
	"strconv"
)

const loopback = "127.0.0.1"

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// choosePorts turns wanted ports into ports that were free a moment ago. A wanted 0 becomes the port at the same place
// of before if that is free, else any free one.
func choosePorts(want, before []int) ([]int, error) {
	ports := make([]int, len(want))
	for i, w := range want {
		listener, err := net.Listen("tcp", address(w))
		if err != nil {
			return nil, fmt.Errorf("use port %d: %w", w, err)
		}
		if w == 0 && i < len(before) {
			if again, err := net.Listen("tcp", address(before[i])); err == nil {
				listener.Close()
				listener = again
			}
		}
		// Held until all are chosen, so that they differ.
		defer listener.Close()
		ports[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
