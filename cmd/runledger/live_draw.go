package main

import (
	"fmt"
	"strings"
	"time"
)

// styled is a line without control sequences, and the color of all of it.
type styled struct{ text, color string }

const (
	noColor = ""
	green   = "32"
	red     = "31"
	yellow  = "33"
	dim     = "2"
	bold    = "1"
)

// marks are how the states of a node are shown.
func marks(state string) (mark, color string) {
	switch state {
	case "running":
		return "▶", bold
	case "done":
		return "✓", green
	case "failed":
		return "✗", red
	case "skipped", "stopped":
		return "-", dim
	}
	return "·", dim
}

// draw draws over what was drawn before. The last picture is followed by the whole answer, as it would stand in a pipe.
func (v *liveView) draw(last bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	columns, rows := v.size()
	var b strings.Builder
	v.erase(&b, columns)
	for _, line := range v.picture(columns, rows, last) {
		text := cut(printable(line.text), columns)
		v.drawn = append(v.drawn, widthOf(text))
		if v.color && line.color != noColor {
			text = "\x1b[" + line.color + "m" + text + "\x1b[0m"
		}
		b.WriteString(text)
		b.WriteByte('\n')
	}
	if last {
		v.drawn = nil
		if v.answer != "" {
			b.WriteString("\n" + strings.TrimRight(printable(v.answer), "\n") + "\n")
		}
	}
	if _, err := v.out.Write([]byte(b.String())); err != nil && v.broken == nil {
		v.broken = fmt.Errorf("write to the terminal: %w", err)
	}
}

// erase goes back to where the last picture began, and clears all behind. A window that has become narrower since shows each of its lines
// in several rows.
func (v *liveView) erase(b *strings.Builder, columns int) {
	up := 0
	for _, width := range v.drawn {
		up += max(1, (width+columns-1)/columns)
	}
	if up > 0 {
		fmt.Fprintf(b, "\x1b[%dA\r\x1b[J", up)
	}
	v.drawn = v.drawn[:0]
}

// picture makes the lines that fit on the screen: the run, its nodes, what somebody has to act on, and the end of what is being said.
func (v *liveView) picture(columns, rows int, last bool) []styled {
	done := 0
	for _, n := range v.nodes {
		if n.state != "pending" && n.state != "running" {
			done++
		}
	}
	head := v.status
	for _, more := range []string{v.title, v.progress(done), v.outcome} {
		if more != "" {
			head += " · " + strings.ReplaceAll(more, "\n", " ")
		}
	}
	lines := []styled{{head, v.headColor()}}
	room := max(1, rows-2) // one for the cursor
	if last {
		room = 1 << 20
	}
	var below []styled
	for _, n := range v.notices {
		below = append(below, styled{"? " + strings.ReplaceAll(n.text, "\n", " "), yellow})
	}
	if text := v.texts[v.speaking]; text != "" && !last {
		said := wrap(printable(text), max(2, columns-2))
		if most := max(1, min(rows/2, room-len(below)-1)); len(said) > most {
			said = said[len(said)-most:]
		}
		below = append(below, styled{v.speaking + ":", dim})
		for _, line := range said {
			below = append(below, styled{"  " + line, noColor})
		}
	}
	lines = append(lines, v.nodeLines(max(1, room-1-len(below)))...)
	lines = append(lines, below...)
	if len(lines) > room {
		lines = lines[:room]
	}
	return lines
}

func (v *liveView) progress(done int) string {
	until := v.now()
	if v.end != "" {
		until = v.ended
	}
	took := fmt.Sprintf("%.1f s", max(0, until.Sub(v.began)).Seconds())
	if len(v.nodes) == 0 {
		return took
	}
	return fmt.Sprintf("%d of %d nodes · %s", done, len(v.nodes), took)
}

func (v *liveView) headColor() string {
	switch v.status {
	case "completed":
		return green
	case "failed":
		return red
	case "running":
		return bold
	}
	return yellow
}

// nodeLines are the nodes in the order of the plan. Where there is no room for all, the beginning is left out as far as it is over, and
// then the end.
func (v *liveView) nodeLines(room int) []styled {
	id, what := 0, 0
	for _, n := range v.nodes {
		id, what = max(id, widthOf(n.id)), max(what, widthOf(n.what))
	}
	first := 0
	for len(v.nodes)-first > room && first < len(v.nodes) && v.nodes[first].state != "running" && v.nodes[first].state != "pending" {
		first++
	}
	shown := v.nodes[first:]
	if first > 0 && len(shown) > room-1 || len(shown) > room {
		shown = shown[:max(0, room-1)]
	}
	var lines []styled
	for _, n := range shown {
		mark, color := marks(n.state)
		took := ""
		if !n.began.IsZero() {
			until := n.ended
			if until.IsZero() {
				until = v.now()
			}
			took = fmt.Sprintf("%.1f s", max(time.Duration(0), until.Sub(n.began)).Seconds())
		}
		text := fmt.Sprintf("%s %s  %s  %7s  %s", mark, pad(n.id, id), pad(n.what, what), took, strings.ReplaceAll(n.note, "\n", " "))
		lines = append(lines, styled{strings.TrimRight(text, " "), color})
	}
	if hidden := len(v.nodes) - len(shown); hidden > 0 {
		lines = append(lines, styled{fmt.Sprintf("  and %d more", hidden), dim})
	}
	return lines
}

func pad(s string, columns int) string { return s + strings.Repeat(" ", max(0, columns-widthOf(s))) }
