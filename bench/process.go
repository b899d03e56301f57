package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processorTick is the unit in which Linux counts a process' time.
const processorTick = 10 * time.Millisecond

// ProcessorTime is what this process and all below it, the servers that it has started, have had of the processors so far.
type ProcessorTime struct {
	All time.Duration
	// By is that by the name of the program; what has ended counts for the program that started it.
	By map[string]time.Duration
}

// Since is what was used since an earlier reading.
func (p ProcessorTime) Since(earlier ProcessorTime) ProcessorTime {
	d := ProcessorTime{All: p.All - earlier.All, By: map[string]time.Duration{}}
	for name, t := range p.By {
		d.By[name] = t - earlier.By[name]
	}
	return d
}

// ReadProcessorTime reads it from /proc, which Linux alone has.
func ReadProcessorTime() (ProcessorTime, error) {
	p := ProcessorTime{By: map[string]time.Duration{}}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(files) == 0 {
		return p, fmt.Errorf("processor time: no /proc as Linux has it: %w", err)
	}
	all := map[int]stat{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended since
		}
		if s, ok := parseStat(text); ok {
			all[s.pid] = s
		}
	}
	for _, s := range all {
		for up, ok := s, true; ok; up, ok = all[up.parent] {
			if up.pid == os.Getpid() {
				p.All += s.used
				p.By[s.name] += s.used
				break
			}
		}
	}
	return p, nil
}

// ProcessorTimeOf is what one process has had of the processors so far.
func ProcessorTimeOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	s, ok := parseStat(text)
	if !ok {
		return 0, fmt.Errorf("processor time of process %d: %q", pid, text)
	}
	return s.used, nil
}

// stat is what is needed of /proc/PID/stat.
type stat struct {
	pid, parent int
	name        string
	used        time.Duration // with that of children that have ended
}

func parseStat(text []byte) (s stat, ok bool) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')') // the name may hold either
	if open < 0 || end < open {
		return s, false
	}
	s.name = string(text[open+1 : end])
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 15 {
		return s, false
	}
	var err error
	if s.pid, err = strconv.Atoi(strings.TrimSpace(string(text[:open]))); err != nil {
		return s, false
	}
	if s.parent, err = strconv.Atoi(fields[1]); err != nil {
		return s, false
	}
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return s, false
		}
		s.used += time.Duration(ticks) * processorTick
	}
	return s, true
}

// ResidentBytes is how much memory a process has, as Linux counts it.
func ResidentBytes(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("memory of process %d: %q", pid, text)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
