package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a runledger that runs. It is ended by its own process id only.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// startProcess starts the binary in dir; what it says goes to the end of logs/name.log there.
func startProcess(binary, dir, name string, env []string, args ...string) (*process, error) {
	out, err := os.OpenFile(filepath.Join(dir, "logs", name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = dir, append(cleanEnv(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// A group of its own: Ctrl-C is for the soak, which then ends everything in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	return p, nil
}

// cleanEnv is the environment without what would steer the programs under test.
func cleanEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case strings.HasPrefix(name, "RUNLEDGER_") && name != "RUNLEDGER_CI", strings.HasPrefix(name, "TEMPORAL_"),
			strings.HasPrefix(name, "OPENAI_"), name == "DATABASE_URL":
		default:
			env = append(env, e)
		}
	}
	return env
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) } // the only error is that it has ended

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the process without a chance to do anything.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stop asks the process to end, and insists.
func (p *process) stop() {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.kill()
	}
}
