package bench

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
)

// Figure is one line of a report: what was measured, and the limit that was measured in the same run.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Limit is what the machine does without us, in the same unit, and LimitName what that is. Empty for a figure that has none.
	Limit     float64 `json:"limit,omitempty"`
	LimitName string  `json:"limit_name,omitempty"`
	// Ratio is Value to Limit. Floor says what it should be at least, or, for times and sizes, Ceiling at most; 0 for neither.
	Ratio   float64 `json:"ratio,omitempty"`
	Floor   float64 `json:"floor,omitempty"`
	Ceiling float64 `json:"ceiling,omitempty"`
}

// Met reports whether the figure is where it should be.
func (f Figure) Met() bool {
	return (f.Floor == 0 || f.Ratio >= f.Floor) && (f.Ceiling == 0 || f.Ratio <= f.Ceiling)
}

// Report is what a benchmark has to say.
type Report struct {
	Benchmark string   `json:"benchmark"`
	Cores     int      `json:"cores"`
	Figures   []Figure `json:"figures"`
	// Notes say what the figures do not.
	Notes []string `json:"notes,omitempty"`
}

// NewReport makes an empty report.
func NewReport(benchmark string) *Report {
	return &Report{Benchmark: benchmark, Cores: runtime.NumCPU()}
}

// Add adds a figure, with its ratio.
func (r *Report) Add(f Figure) {
	if f.Limit > 0 {
		f.Ratio = f.Value / f.Limit
	}
	r.Figures = append(r.Figures, f)
}

// Note adds a line of text.
func (r *Report) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// JSONFlag is the flag that every benchmark has.
func JSONFlag() *bool { return flag.Bool("json", false, "print the report as JSON") }

// Print writes the report, as a table for people or as a line of JSON.
func (r *Report) Print(asJSON bool) error {
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	return r.table(os.Stdout)
}

func (r *Report) table(out io.Writer) error {
	fmt.Fprintf(out, "%s, %d cores\n", r.Benchmark, r.Cores)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what\tmeasured\tlimit\tratio\twanted\t\tlimit is\t")
	for _, f := range r.Figures {
		limit, ratio, wanted, met := "", "", "", ""
		if f.Limit > 0 {
			limit, ratio = number(f.Limit, f.Unit), fmt.Sprintf("%.2f", f.Ratio)
		}
		switch {
		case f.Floor > 0:
			wanted = fmt.Sprintf(">= %.2f", f.Floor)
		case f.Ceiling > 0:
			wanted = fmt.Sprintf("<= %.2f", f.Ceiling)
		}
		if wanted != "" {
			met = map[bool]string{true: "met", false: "MISSED"}[f.Met()]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.Name, number(f.Value, f.Unit), limit, ratio, wanted, met, f.LimitName)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range r.Notes {
		fmt.Fprintln(out, n)
	}
	return nil
}

// number shows a figure with as many digits as say something.
func number(v float64, unit string) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f %s", v, unit)
	case v >= 10:
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.3g %s", v, unit)
}

// Quantile is the value below which a part p of them lies. values are sorted by it.
func Quantile[N int | int64 | float64](values []N, p float64) N {
	slices.Sort(values)
	if len(values) == 0 {
		return 0
	}
	return values[min(int(p*float64(len(values))), len(values)-1)]
}
