package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// adoptedPoll is how often an adopted process is looked at. Only a parent is told when a process ends, so a server
// that another program started has to be asked for.
const adoptedPoll = 100 * time.Millisecond

// killPatience is how long a process may take to disappear after SIGKILL, which it cannot refuse.
const killPatience = 5 * time.Second

// hurry is how long a step of stopping may still take once the caller's context has ended.
const hurry = time.Second

// command says what to run and as whom.
type command struct {
	path    string
	args    []string
	dir     string
	env     []string
	account *account // nil: the user we are
}

func (c command) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if c.account != nil {
		attr.Credential = &syscall.Credential{Uid: c.account.uid, Gid: c.account.gid}
	}
	return attr
}

// process is a server process, started by us or adopted.
type process struct {
	pid   int
	born  string
	ended chan struct{} // closed when it has ended, for whatever reason
}

// spawn starts c with its output in out. It tells register the process id and time of birth before c itself runs, so
// that there is no moment at which we could be killed and leave a server behind that no record names: the process
// starts as a shell that waits for our word, and exec keeps both. If we die before giving it, the shell reads the end
// of the pipe and goes too.
func spawn(c command, out *os.File, register func(pid int, born string) error) (*process, error) {
	gateOut, gateIn, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.path, err)
	}
	defer gateIn.Close()

	gated := []string{"-c", `read -r go && exec "$@" </dev/null`, "sh", c.path}
	cmd := exec.Command("/bin/sh", append(gated, c.args...)...)
	cmd.Dir, cmd.Env = c.dir, c.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = gateOut, out, out
	cmd.SysProcAttr = c.attributes()
	err = cmd.Start()
	gateOut.Close()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.path, err)
	}
	p := &process{pid: cmd.Process.Pid, ended: make(chan struct{})}
	p.born, _ = birth(p.pid)
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.ended)
	}()

	err = register(p.pid, p.born)
	if err == nil {
		_, err = io.WriteString(gateIn, "go\n")
	}
	if err != nil {
		gateIn.Close()
		<-p.ended
		return nil, fmt.Errorf("start %s: %w", c.path, err)
	}
	return p, nil
}

// adopt takes over a process that is alive.
func adopt(pid int, born string) *process {
	p := &process{pid: pid, born: born, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		tick := time.NewTicker(adoptedPoll)
		defer tick.Stop()
		for alive(pid, born) {
			<-tick.C
		}
	}()
	return p
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// stopStep is a signal and how long to wait for its effect.
type stopStep struct {
	signal   syscall.Signal
	patience time.Duration
}

// stop sends the signals of the steps one after the other until the process has ended; the last word is SIGKILL, to
// its whole group. A ctx that ends makes it hurry, not give up: a server is never left running.
func (p *process) stop(ctx context.Context, steps []stopStep) error {
	for _, s := range steps {
		p.signal(s.signal, false)
		patience, done := time.NewTimer(s.patience), ctx.Done()
	wait:
		for {
			select {
			case <-p.ended:
				patience.Stop()
				return nil
			case <-patience.C:
				break wait
			case <-done:
				done = nil
				patience.Reset(min(s.patience, hurry))
			}
		}
	}
	p.signal(syscall.SIGKILL, true)
	select {
	case <-p.ended:
		return nil
	case <-time.After(killPatience):
		return fmt.Errorf("process %d is still there %v after SIGKILL", p.pid, killPatience)
	}
}

// signal reaches the process, or its group, if it is still the one we mean.
func (p *process) signal(s syscall.Signal, group bool) {
	if p.hasEnded() || !alive(p.pid, p.born) {
		return
	}
	target := p.pid
	if group {
		target = -p.pid
	}
	// The only error left is that it ended in between.
	_ = syscall.Kill(target, s)
}

// alive reports whether the process pid that was born then still runs.
func alive(pid int, born string) bool {
	if pid <= 1 || born == "" {
		return false
	}
	now, ok := birth(pid)
	return ok && now == born
}

// birth names the moment a process began, in a form that only compares. It is not ok when there is no such process, or
// when it has ended and only waits to be reaped.
func birth(pid int) (string, bool) {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return "", false
	}
	if stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err == nil {
		return procBirth(stat)
	}
	return psBirth(pid) // no /proc as Linux has it
}

// psBirth asks ps, as a person would: in one language and time zone, so that the answer is the same tomorrow.
func psBirth(pid int) (string, bool) {
	cmd := exec.Command("ps", "-o", "stat=,lstart=", "-p", strconv.Itoa(pid))
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	out, err := cmd.Output()
	state, started, found := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || !found || strings.HasPrefix(state, "Z") {
		return "", false
	}
	return strings.TrimSpace(started), true
}

// procBirth reads the 22nd field of /proc/PID/stat, ticks since boot, and puts the boot's own id before it. Fields are
// counted from behind the command's name, which may hold spaces and brackets.
func procBirth(stat []byte) (string, bool) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 || bytes.ContainsAny(fields[0], "ZX") {
		return "", false
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(boot)) + "/" + string(fields[19]), true
}

// run executes c to its end and returns what it wrote, both streams together.
func run(ctx context.Context, c command, stdin string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, c.path, c.args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	cmd.SysProcAttr = c.attributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killPatience
	err := cmd.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out.String(), err
}
