package main

import (
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// terminalSize gives the way to ask a terminal for its columns and rows, nil for what is none. The answer changes when its window
// does; 80 and 24 where it does not know.
func terminalSize(f *os.File) func() (columns, rows int) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return nil
	}
	columns, rows := int(size.Col), int(size.Row)
	return func() (int, int) {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			columns, rows = int(size.Col), int(size.Row)
		}
		if columns < 1 || rows < 1 {
			return 80, 24
		}
		return columns, rows
	}
}

// printable takes out of a text what a terminal would obey, but for ends of lines: the text may be a model's or a tool's.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, s)
}

// columnsOf is how wide a terminal draws a rune.
func columnsOf(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff, r >= 0xfe30 && r <= 0xfe6f,
		r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1faff, r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}

func widthOf(s string) (n int) {
	for _, r := range s {
		n += columnsOf(r)
	}
	return n
}

// cut is the beginning of a line that is no wider than that, with a mark where something is left out.
func cut(s string, columns int) string {
	if widthOf(s) <= columns {
		return s
	}
	n := 0
	for i, r := range s {
		if n += columnsOf(r); n > columns-1 {
			return s[:i] + "…"
		}
	}
	return s
}

// wrap breaks a text into lines that are no wider than that.
func wrap(text string, columns int) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		for widthOf(line) > columns {
			n, at := 0, len(line)
			for i, r := range line {
				if n += columnsOf(r); n > columns {
					at = i
					break
				}
			}
			if at == 0 { // not even one rune
				at = len(string([]rune(line)[:1]))
			}
			if space := strings.LastIndexByte(line[:at], ' '); space > 0 {
				at = space + 1
			}
			lines = append(lines, line[:at])
			line = line[at:]
		}
		lines = append(lines, line)
	}
	return lines
}
