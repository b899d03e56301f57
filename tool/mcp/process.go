package mcp

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process is a running server with everything it has started: launchers such as npx start the server proper as a
// grandchild, which signals to the launcher alone would leave behind.
type process struct {
	cmd    *exec.Cmd
	stdin  *os.File // our ends of the pipes
	stdout *os.File
	stderr tail
	grace  time.Duration
	// ended is closed when the command has ended and its group has been killed.
	ended    chan struct{}
	stopOnce sync.Once
}

// startProcess starts the command of a completed configuration.
func startProcess(cfg Config) (*process, error) {
	env, err := cfg.environment()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(cfg.Command[0], cfg.Command[1:]...)
	cmd.Dir, cmd.Env = cfg.Dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &process{cmd: cmd, grace: cfg.grace, ended: make(chan struct{})}

	var theirs []*os.File
	closeAll := func(files []*os.File) {
		for _, f := range files {
			_ = f.Close() // nothing was written through them yet
		}
	}
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	// Pipes of our own instead of the ones that exec makes: they have deadlines, and Wait does not wait for them.
	stdinR, stdinW := pipe()
	stdoutR, stdoutW := pipe()
	stderrR, stderrW := pipe()
	theirs = []*os.File{stdinR, stdoutW, stderrW}
	if err != nil {
		closeAll(append(theirs, stdinW, stdoutR, stderrR))
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdinR, stdoutW, stderrW
	p.stdin, p.stdout = stdinW, stdoutR
	err = cmd.Start()
	closeAll(theirs)
	if err != nil {
		closeAll([]*os.File{stdinW, stdoutR, stderrR})
		return nil, err
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		p.readErrors(stderrR, cfg)
	}()
	go p.wait(cfg, stderrR, logged)
	return p, nil
}

// readErrors passes on what the server says on its standard error. A line of any length is read, so that the server never
// waits for us.
func (p *process) readErrors(stderr *os.File, cfg Config) {
	lines := bufio.NewReaderSize(stderr, 4<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			p.stderr.add(line)
			cfg.Log.Debug("mcp server says", "line", string(trimLine(line)))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func trimLine(line []byte) []byte {
	for len(line) > 0 && (line[len(line)-1] == '\n' || line[len(line)-1] == '\r') {
		line = line[:len(line)-1]
	}
	return line
}

// wait reaps the command and ends what it has left behind. A server that detached itself from the group cannot be found;
// its pipes must not hold us up.
func (p *process) wait(cfg Config, stderr *os.File, logged chan struct{}) {
	err := p.cmd.Wait()
	p.signal(syscall.SIGKILL)
	cfg.Log.Debug("mcp server has ended", "error", err)
	deadline := time.Now().Add(p.grace)
	_ = p.stdout.SetReadDeadline(deadline)
	_ = stderr.SetReadDeadline(deadline)
	<-logged
	_ = stderr.Close()
	close(p.ended)
}

// signal sends to the whole group. A group that is gone already is what we want.
func (p *process) signal(sig syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, sig)
}

// kill ends the server at once.
func (p *process) kill() { p.signal(syscall.SIGKILL) }

// stop ends the server as the protocol asks: closed input, then SIGTERM, then SIGKILL. It returns when it has ended and
// may be called more than once.
func (p *process) stop() {
	p.stopOnce.Do(func() {
		_ = p.stdin.Close()
		if !p.endsWithin(p.grace) {
			p.signal(syscall.SIGTERM)
			if !p.endsWithin(p.grace) {
				p.signal(syscall.SIGKILL)
			}
		}
	})
	<-p.ended
}

func (p *process) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true
	case <-timer.C:
		return false
	}
}

// explain adds the last words of the server to an error for the operator. They are not for the record: a server may print
// what it likes.
func (p *process) explain(err error) error {
	if last := p.stderr.String(); last != "" {
		return fmt.Errorf("%w; its last words: %s", err, last)
	}
	return err
}

// tail keeps the end of a text.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) add(text []byte) {
	const most = 1 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	if len(t.text) > most {
		t.text = append(t.text[:0], t.text[len(t.text)-most:]...)
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(trimLine(t.text))
}
