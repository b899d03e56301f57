package scripted

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestArithmetic(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{
		"What is 19 * 23?":               {"19 * 23"},
		"2+2":                            {"2 + 2"},
		"What's 2+2=?":                   {"2 + 2"},
		"(2.5 + 3)^2 / 4, and 1,000 * 3": {"(2.5 + 3) ^ 2 / 4", "1000 * 3"},
		"2 x 3, 4x5, (1+2)×(3−1) ÷ 2 and 3 · 4":    {"2 * 3", "4 * 5", "(1 + 2) * (3 - 1) / 2", "3 * 4"},
		"2 ** 10 or 3 to the power of 2":           {"2 ^ 10", "3 ^ 2"},
		"two plus two, twenty-one times 2":         {"2 + 2", "21 * 2"},
		"12 divided by 4 and 5 multiplied by 6":    {"12 / 4", "5 * 6"},
		"the square root of 16, sqrt(2)":           {"sqrt(16)", "sqrt(2)"},
		"max(1, 2+3) and round(100 / 3, 2)":        {"max(1, 2 + 3)", "round(100 / 3, 2)"},
		"20% of 150, 10 % 3, 15% + 3, 30 percent":  {"(20 / 100) * 150", "10 % 3", "(15 / 100) + 3", "30 / 100"},
		"add 2 and 3, multiply 4 by 5":             {"2 + 3", "4 * 5"},
		"divide 10 by 4 and subtract 3 from 1,000": {"10 / 4", "1000 - 3"},
		"the sum of 1, 2 and 3":                    {"1 + 2 + 3"},
		"the difference between 7 and -2":          {"7 - -2"},
		"5 - -3; -3 + 5; (-2) * 4":                 {"5 - -3", "-3 + 5", "(-2) * 4"},
		"**2 + 2**":                                {"2 + 2"},
		"- 3 + 4\n- 5 * 6\n1. 7 + 8":               {"3 + 4", "5 * 6", "7 + 8"},
		"((2+3, 2 + 3) * 4 and (((2+3)))":          {"2 + 3", "2 + 3", "2 + 3"},
		"2 + 2 - that is all":                      {"2 + 2"},
		"007 + 0.50":                               {"7 + 0.50"},
		"what is 3-5, 1/2?":                        {"3 - 5", "1 / 2"},

		"":                                     nil,
		"Is 91 prime?":                         nil,
		"Give me 3-5 ideas":                    nil,
		"1/2 cup of milk, 24/7":                nil,
		"on 2026-11-21 at 10:30":               nil,
		"2026-11-21T10:30:00Z":                 nil,
		"on 21/11/2026":                        nil,
		"version 1.2.3-4":                      nil,
		"call 555-1234":                        nil,
		"COVID-19 + flu":                       nil,
		"x2+3, v2*2, 3rd, 4k * 2":              nil,
		"10.0.0.1/24":                          nil,
		"550e8400-e29b-41d4-a716-446655440000": nil,
		"1 + and + 2":                          nil,
		"2 +":                                  nil,
		"max power":                            nil,
		"one-two punch with a 6x zoom":         nil,
		"((((((((((((((((((((((((((((((":       nil,
	}
	for text, want := range tests {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, e := range arithmetic(text) {
				got = append(got, e.text)
			}
			require.Equal(t, want, got)
		})
	}
}

func TestArithmeticTakesEveryFormOfAnExpression(t *testing.T) {
	t.Parallel()
	operators := []string{"+", "-", "*", "/", "^", "%", "plus", "minus", "times", "divided by", "×", "÷", "−", "to the power of"}
	plain := map[string]string{"plus": "+", "minus": "-", "times": "*", "divided by": "/", "×": "*", "÷": "/", "−": "-", "to the power of": "^"}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "operands")
		var said, want strings.Builder
		for i := range n {
			if i > 0 {
				op := rapid.SampledFrom(operators).Draw(t, "operator")
				fmt.Fprintf(&said, " %s ", op)
				if p, ok := plain[op]; ok {
					op = p
				}
				fmt.Fprintf(&want, " %s ", op)
			}
			number := fmt.Sprint(rapid.IntRange(0, 99999).Draw(t, "number"))
			if rapid.Bool().Draw(t, "parenthesis") {
				number = "(" + number + " + 1)"
			}
			said.WriteString(number)
			want.WriteString(number)
		}
		before := rapid.SampledFrom([]string{"", "What is ", "Please compute ", "I have 3 apples; what is "}).Draw(t, "before")
		after := rapid.SampledFrom([]string{"", "?", ".", " and why?", " = ?", ", please"}).Draw(t, "after")
		got := arithmetic(before + said.String() + after)
		require.Len(t, got, 1)
		require.Equal(t, want.String(), got[0].text)
	})
}

var calculatorForm = regexp.MustCompile(`^[-0-9+*/%^(). ,a-z]+$`)

// checkArithmetic: what is found is in the calculator's form, stands where it is said to, and is found again in itself.
func checkArithmetic(t *testing.T, text string) {
	t.Helper()
	end := 0
	for _, e := range arithmetic(text) {
		require.GreaterOrEqual(t, e.from, end)
		require.LessOrEqual(t, e.to, len(text))
		end = e.to
		require.Regexp(t, calculatorForm, e.text)
		depth := 0
		for _, r := range e.text {
			switch r {
			case '(':
				depth++
			case ')':
				depth--
			}
			require.GreaterOrEqual(t, depth, 0)
		}
		require.Zero(t, depth)
		again := arithmetic(e.text)
		require.Len(t, again, 1, e.text)
		require.Equal(t, e.text, again[0].text)
	}
}

func FuzzArithmetic(f *testing.F) {
	for _, text := range []string{
		"What is 19 * 23?", "(2.5 + 3)^2 / 4", "20% of 150", "the square root of 16", "max(1, 2+3)", "add 2 and 3", "2 x 3",
		"two plus two", "1% of 1% of 1% of 2", "5 - -3", "((((", "max(max(max(1", "1/2-3", "3−1 × 4", "(2)(3)", "2026-11-21", "\xff1+1\xfe",
		"5 -(3)", "1,2,3 + 4", "square root of square root of -9", "-(1) + 2", "10%3%2", "0 minus -1%",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) <= 4096 {
			checkArithmetic(t, text)
		}
	})
}

// A text that somebody writes on purpose must not take the planner's time: these would take hours if the parser tried every
// way to read them.
func TestArithmeticDoesNotBacktrack(t *testing.T) {
	t.Parallel()
	for _, piece := range []string{"(", "max(1,", "1% of ", "1-2 ", "square root of ", "1+", "(1+1+", "x ", "- ", "max(1+1+1+1+1,", "1% of (1+"} {
		t.Run(piece, func(t *testing.T) {
			t.Parallel()
			checkArithmetic(t, strings.Repeat(piece, 300))
		})
	}
}
