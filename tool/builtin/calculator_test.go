package builtin

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"runledger/agent"
	"runledger/tool"
)

func TestCalculator(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		"1 + 2 * 3":             "7",
		"(1 + 2) * 3":           "9",
		"10 - 4 - 3":            "3",
		"100 / 10 / 5":          "2",
		"0.1 + 0.2":             "0.3",
		"1.10 * 3":              "3.3",
		"-2^2":                  "-4",
		"(-2)^2":                "4",
		"2^-1":                  "0.5",
		"2^3^2":                 "512",
		"2 ** 10":               "1024",
		"--3":                   "3",
		"+-+3":                  "-3",
		"7 % 3":                 "1",
		"-7 % 3":                "-1",
		"7 % -3":                "1",
		"7.5 % 2":               "1.5",
		"2 × 3 ÷ 4 − 1 · 2":     "-0.5",
		".5 + 1.":               "1.5",
		"2.5e-3 * 1E3":          "2.5",
		"sqrt(144)":             "12",
		"sqrt(0.25)":            "0.5",
		"abs(-3.5)":             "3.5",
		"round(2.5)":            "3",
		"round(-2.5)":           "-3",
		"round(2.345, 2)":       "2.35",
		"round(1234, -2)":       "1200",
		"floor(-1.5)":           "-2",
		"ceil(-1.5)":            "-1",
		"floor(1.5) + ceil(.5)": "2",
		"min(3, 1, 2)":          "1",
		"max(1/3, 0.3333) * 3":  "1",
		"1/3 + 2/3":             "1",
		"1/3*3":                 "1",
		"2^100":                 "1267650600228229401496703205376",
		"0^0":                   "1",
		"1^(10^300)":            "1",
		"(-1)^(10^300 + 1)":     "-1",
		"12345678901234567890 * 98765432109876543210": "1219326311370217952237463801111263526900",
		"1e-40 * 1":           "0." + strings.Repeat("0", 39) + "1",
		"0 / 5":               "0",
		" \t1\n+\u00a02 ":     "3",
		"0.07 * 100":          "7",
		"19.99 * 3 * 1.19":    "71.3643",
		"round(19.99*3*0.19)": "11",
	} {
		n, err := evaluate(expression)
		require.NoError(t, err, expression)
		require.Equal(t, want, n.output().Result, expression)
		require.Equal(t, want, n.output().Value.String(), expression)
		require.True(t, n.output().Exact, expression)
	}
}

func TestCalculatorRounds(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		"1/3":               "0.3333333333333333333333333333333333",
		"2/3":               "0.6666666666666666666666666666666667",
		"-200/3":            "-66.66666666666666666666666666666667",
		"sqrt(2)":           "1.414213562373095048801688724209698",
		"sqrt(2) * sqrt(2)": "2",
		"sqrt(1/3)":         "0.5773502691896257645091487805019575",
		"sqrt(2e-300)":      "0." + strings.Repeat("0", 149) + "1414213562373095048801688724209698",
		"sqrt(2e300)":       "1414213562373095048801688724209698" + strings.Repeat("0", 117),
		"1/3*10^1000":       strings.Repeat("3", 34) + strings.Repeat("0", 966),
		"sqrt(2)*10^1200":   "1414213562373095048801688724209698" + strings.Repeat("0", 1167),
	} {
		n, err := evaluate(expression)
		require.NoError(t, err, expression)
		require.Equal(t, want, n.output().Result, expression)
		require.False(t, n.output().Exact, expression)
	}
	n, err := evaluate("10^1000")
	require.NoError(t, err)
	require.Empty(t, n.output().Value, "no double holds it")
}

func TestCalculatorRefuses(t *testing.T) {
	t.Parallel()
	for expression, message := range map[string]string{
		"":                                     "column 1: the expression ends too early",
		"1 +":                                  "column 4: the expression ends too early",
		"(1":                                   "column 3: the expression ends too early",
		"1)":                                   `column 2: unexpected ')'`,
		"2(3)":                                 `column 2: unexpected '('`,
		"1,000":                                `column 2: unexpected ','`,
		"1 2":                                  `column 3: unexpected '2'`,
		"1..2":                                 `column 3: unexpected '.'`,
		".":                                    `column 1: unexpected '.'`,
		"50%":                                  "column 4: the expression ends too early",
		"%5":                                   "for a percentage divide by 100",
		"5 $ 3":                                `column 3: unexpected '$'`,
		"1 / 0":                                "column 3: division by zero",
		"1 % (2 - 2)":                          "division by zero",
		"0^-1":                                 "division by zero",
		"2^0.5":                                "the exponent must be an integer",
		"sqrt(-1)":                             "column 1: sqrt: a negative number",
		"sqrt(1, 2)":                           "takes at most 1 arguments",
		"round(1, 0.5)":                        "number of digits",
		"round(1, 10^30)":                      "number of digits",
		"sin(1)":                               `column 1: there is no function "sin"`,
		"pi":                                   "there is no function",
		"sqrt 4":                               `unexpected '4'`,
		"min()":                                `unexpected ')'`,
		"9^9^9^9":                              "the numbers become too large",
		"2^-9999999999":                        "the numbers become too large",
		"10^2000":                              "the numbers become too large",
		"(2^4000)^2":                           "the numbers become too large",
		"2^4000 * 2^4000":                      "the numbers become too large",
		"1e99999":                              "an exponent has one to four digits",
		"1e":                                   "an exponent has one to four digits",
		"1e9999":                               "the numbers become too large",
		strings.Repeat("(", 200):               "nested deeper than 100",
		strings.Repeat("-", 200):               "nested deeper than 100",
		strings.Repeat("2^", 200):              "nested deeper than 100",
		strings.Repeat("abs(", 200):            "nested deeper than 100",
		strings.Repeat("1+", 3000):             "4096 are allowed",
		"1\x00":                                "unexpected",
		"1 + \xff":                             "unexpected",
		"__import__('os').getpid()":            `unexpected '_'`,
		"1; 2":                                 `unexpected ';'`,
		strings.Repeat("9", 4000):              "the numbers become too large",
		"1/" + strings.Repeat("9", 9) + "^400": "the numbers become too large",
	} {
		_, err := evaluate(expression)
		require.ErrorContains(t, err, message, expression)
	}
}

func TestCalculatorAsATool(t *testing.T) {
	t.Parallel()
	calculator := Calculator()
	require.Equal(t, agent.Deterministic, calculator.Spec().Effect)
	out, err := calculator.Call(t.Context(), tool.Call{Arguments: json.RawMessage(`{"expression": "10 / 4 * 5"}`)})
	require.NoError(t, err)
	require.Equal(t, `{"result":"12.5","value":12.5,"exact":true}`, string(out))

	_, err = calculator.Call(t.Context(), tool.Call{Arguments: json.RawMessage(`{"expression": "1/0"}`)})
	failure, ok := agent.AsError(err)
	require.True(t, ok)
	require.Equal(t, agent.CodeToolFailed, failure.Code)
	require.Equal(t, agent.FaultDefinite, failure.Fault)
	require.ErrorIs(t, err, errDivision)

	_, err = calculator.Call(t.Context(), tool.Call{Arguments: json.RawMessage(`{"expression": 1}`)})
	require.ErrorIs(t, err, &agent.Error{Code: agent.CodeInvalidArguments})
}

// The slowest expressions that the limits let through must be harmless. The bound is generous: the point is that the time
// does not grow with the numbers.
func TestCalculatorCannotBurnTime(t *testing.T) {
	t.Parallel()
	var primes []string
	for i := 1009; len(primes) < 450; i += 2 {
		if big.NewInt(int64(i)).ProbablyPrime(0) {
			primes = append(primes, fmt.Sprintf("1/%d", i))
		}
	}
	for name, expression := range map[string]string{
		"fractions without a common divisor": strings.Join(primes[:400], "+"),
		"fractions until it is too large":    strings.Join(primes, "+"),
		"powers":                             strings.Repeat("7^1400%9^1290+", 290) + "1",
		"roots":                              strings.Repeat("sqrt(7^1400)+", 310) + "1",
		"roots of roots":                     strings.Repeat("sqrt(", 90) + "7^1400" + strings.Repeat(")", 90),
		"roundings":                          strings.Repeat("round(1/7^1400,999)+", 200) + "1",
	} {
		start := time.Now()
		_, _ = evaluate(expression[:min(len(expression), maxExpression)])
		require.Less(t, time.Since(start), 10*time.Second, name)
	}
}

// genTree writes random expressions together with their value by math/big.
func genTree(t *rapid.T, depth int) (string, *big.Rat) {
	if depth == 0 || rapid.IntRange(0, 3).Draw(t, "leaf") == 0 {
		text := rapid.StringMatching(`(0|[1-9][0-9]{0,5})(\.[0-9]{1,4})?`).Draw(t, "literal")
		value, ok := new(big.Rat).SetString(text)
		require.True(t, ok)
		return text, value
	}
	left, a := genTree(t, depth-1)
	right, b := genTree(t, depth-1)
	left, right = "("+left+")", "("+right+")"
	switch op := rapid.SampledFrom([]string{"+", "-", "*", "/", "min", "max", "neg", "abs", "^2"}).Draw(t, "op"); op {
	case "+":
		return left + "+" + right, new(big.Rat).Add(a, b)
	case "-":
		return left + " - " + right, new(big.Rat).Sub(a, b)
	case "*":
		return left + "*" + right, new(big.Rat).Mul(a, b)
	case "/":
		if b.Sign() == 0 {
			return left, a
		}
		return left + " / " + right, new(big.Rat).Quo(a, b)
	case "neg":
		return "-" + left, new(big.Rat).Neg(a)
	case "abs":
		return "abs" + left, new(big.Rat).Abs(a)
	case "^2":
		return left + "^2", new(big.Rat).Mul(a, a)
	case "min", "max":
		if (a.Cmp(b) < 0) == (op == "min") {
			return op + "(" + left + "," + right + ")", a
		}
		return op + "(" + left + "," + right + ")", b
	}
	panic("unreachable")
}

func TestCalculatorIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		expression, want := genTree(t, 4)
		if len(expression) > maxExpression {
			t.Skip("too long")
		}
		n, err := evaluate(expression)
		if err != nil {
			require.ErrorIs(t, err, errTooLarge)
			return
		}
		require.Zero(t, n.rat.Cmp(want), "%s = %s, want %s", expression, n.rat, want)
		out := n.output()
		back, ok := new(big.Rat).SetString(out.Result)
		require.True(t, ok)
		if out.Exact {
			require.Zero(t, back.Cmp(want))
			return
		}
		off := back.Sub(back, want)
		limit := new(big.Rat).Mul(new(big.Rat).Abs(want), new(big.Rat).SetFrac(big.NewInt(1), new(big.Int).Exp(big.NewInt(10), big.NewInt(significant-1), nil)))
		require.LessOrEqual(t, off.Abs(off).Cmp(limit), 0, "%s: %s is off by more than the last digit", expression, out.Result)
	})
}

func FuzzEvaluate(f *testing.F) {
	for _, seed := range []string{
		"1 + 2 * 3", "-2^2", "sqrt(2) % 0.3", "round(1/3, 5)", "max(1, 2, -3e2)", "9^9^9^9", "1e-9999", "((1)", "2**-3", "7 × 2 ÷ 3 − 1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		n, err := evaluate(expression)
		if err != nil {
			return
		}
		out := n.output()
		if _, ok := new(big.Rat).SetString(out.Result); !ok || strings.ContainsAny(out.Result, "eE/") {
			t.Fatalf("%q gives %q", expression, out.Result)
		}
		if data, err := json.Marshal(out); err != nil || !json.Valid(data) {
			t.Fatalf("%q gives %s, %v", expression, data, err)
		}
	})
}
