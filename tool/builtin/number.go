package builtin

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strings"
)

const (
	// maxFraction is how many digits after the point are written of a decimal that ends.
	maxFraction = 1000
	// significant is how many digits are written of a number that is rounded, as many as decimal128 has.
	significant = 34
)

// checked refuses a number that has grown beyond the limits.
func checked(r *big.Rat, exact bool) (number, error) {
	if r.Num().BitLen() > maxBits || r.Denom().BitLen() > maxBits {
		return number{}, errTooLarge
	}
	return number{rat: r, exact: exact}, nil
}

func apply(op rune, a, b number) (number, error) {
	r := new(big.Rat)
	switch op {
	case '+':
		r.Add(a.rat, b.rat)
	case '-':
		r.Sub(a.rat, b.rat)
	case '*':
		r.Mul(a.rat, b.rat)
	default:
		if b.rat.Sign() == 0 {
			return number{}, errDivision
		}
		r.Quo(a.rat, b.rat)
		if op == '%' {
			// The remainder has the sign of the dividend, as in most programming languages: -7 % 3 is -1.
			whole := new(big.Rat).SetInt(new(big.Int).Quo(r.Num(), r.Denom()))
			r.Sub(a.rat, whole.Mul(whole, b.rat))
		}
	}
	return checked(r, a.exact && b.exact)
}

// power raises to an integer. The size of the result is known before it is computed, so that 9^9^9^9 costs nothing.
func power(base, exponent number) (number, error) {
	if !exponent.rat.IsInt() {
		return number{}, errors.New("the exponent must be an integer; for a square root use sqrt(x)")
	}
	exact := base.exact && exponent.exact
	e := exponent.rat.Num()
	negative := e.Sign() < 0
	if base.rat.Sign() == 0 && negative {
		return number{}, errDivision
	}
	one := big.NewRat(1, 1)
	switch {
	case e.Sign() == 0 || base.rat.Cmp(one) == 0:
		return number{rat: one, exact: exact}, nil
	case base.rat.Sign() == 0:
		return number{rat: new(big.Rat), exact: exact}, nil
	case new(big.Rat).Neg(base.rat).Cmp(one) == 0:
		r := big.NewRat(1, 1)
		if e.Bit(0) == 1 {
			r.Neg(r)
		}
		return number{rat: r, exact: exact}, nil
	}
	// From here on one of the two parts is at least 2 and so has at least one bit per step.
	bits := int64(max(base.rat.Num().BitLen(), base.rat.Denom().BitLen()) - 1)
	steps := new(big.Int).Abs(e)
	if !steps.IsInt64() || steps.Int64() > maxBits || bits*steps.Int64() > maxBits {
		return number{}, errTooLarge
	}
	num := new(big.Int).Exp(base.rat.Num(), steps, nil)
	denom := new(big.Int).Exp(base.rat.Denom(), steps, nil)
	if negative {
		num, denom = denom, num
	}
	return checked(new(big.Rat).SetFrac(num, denom), exact)
}

type function struct {
	most  int
	apply func(args []number) (number, error)
}

// functions are called with at least one argument.
var functions = map[string]function{
	"abs": {1, func(a []number) (number, error) {
		return number{rat: new(big.Rat).Abs(a[0].rat), exact: a[0].exact}, nil
	}},
	"floor": {1, func(a []number) (number, error) { return number{rat: floor(a[0].rat), exact: a[0].exact}, nil }},
	"ceil": {1, func(a []number) (number, error) {
		down := floor(new(big.Rat).Neg(a[0].rat))
		return number{rat: down.Neg(down), exact: a[0].exact}, nil
	}},
	"min":   {maxExpression, func(a []number) (number, error) { return extreme(a, -1), nil }},
	"max":   {maxExpression, func(a []number) (number, error) { return extreme(a, 1), nil }},
	"round": {2, roundTo},
	"sqrt":  {1, func(a []number) (number, error) { return sqrt(a[0]) }},
}

func floor(r *big.Rat) *big.Rat {
	// Div rounds down for a positive divisor, and a denominator is positive.
	return new(big.Rat).SetInt(new(big.Int).Div(r.Num(), r.Denom()))
}

func extreme(args []number, sign int) number {
	best := args[0]
	for _, n := range args[1:] {
		if n.rat.Cmp(best.rat) == sign {
			best.rat = n.rat
		}
		best.exact = best.exact && n.exact // which one it is may hang on a rounded digit
	}
	return best
}

// roundTo rounds half away from zero, as people do with money, to a number of digits after the point (0 when left out,
// negative for tens and hundreds).
func roundTo(args []number) (number, error) {
	digits, exact := int64(0), args[0].exact
	if len(args) == 2 {
		d := args[1].rat
		if !d.IsInt() || !d.Num().IsInt64() || d.Num().Int64() < -maxFraction || d.Num().Int64() > maxFraction {
			return number{}, errors.New("the number of digits must be an integer between -1000 and 1000")
		}
		digits, exact = d.Num().Int64(), exact && args[1].exact
	}
	return checked(roundRat(args[0].rat, digits), exact)
}

func roundRat(x *big.Rat, digits int64) *big.Rat {
	scale := tenTo(digits)
	r := new(big.Rat).Abs(x)
	r = floor(r.Add(r.Mul(r, scale), big.NewRat(1, 2)))
	r.Quo(r, scale)
	if x.Sign() < 0 {
		r.Neg(r)
	}
	return r
}

func tenTo(digits int64) *big.Rat {
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(max(digits, -digits)), nil)
	if digits < 0 {
		return new(big.Rat).SetFrac(big.NewInt(1), power)
	}
	return new(big.Rat).SetInt(power)
}

// sqrt is exact for the square of a fraction. Any other root is cut off some digits after the last one that is shown.
func sqrt(n number) (number, error) {
	if n.rat.Sign() < 0 {
		return number{}, errors.New("a negative number has no square root")
	}
	num, denom := new(big.Int).Sqrt(n.rat.Num()), new(big.Int).Sqrt(n.rat.Denom())
	if root := new(big.Rat).SetFrac(num, denom); new(big.Rat).Mul(root, root).Cmp(n.rat) == 0 {
		return number{rat: root, exact: n.exact}, nil
	}
	// sqrt(p/q) = sqrt(p*q) / q. The shift is for the digits after the point: since p*q is at least 1, they all count.
	const shift = 4 * (significant + 10)
	radicand := new(big.Int).Mul(n.rat.Num(), n.rat.Denom())
	root := new(big.Int).Sqrt(radicand.Lsh(radicand, 2*shift))
	r := new(big.Rat).SetFrac(root, new(big.Int).Lsh(n.rat.Denom(), shift))
	r, err := cut(r)
	if err != nil {
		return number{}, err
	}
	return checked(r, false)
}

// cut shortens a fraction to a decimal of a few more digits than are ever shown, so that rounded numbers stay small.
func cut(r *big.Rat) (*big.Rat, error) {
	text := rounded(r, significant+6)
	short, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, errTooLarge
	}
	return short, nil
}

func (n number) output() calculatorOut {
	out := calculatorOut{Exact: n.exact}
	if places, ends := n.rat.FloatPrec(); n.exact && ends && places <= maxFraction {
		out.Result = n.rat.FloatString(places)
	} else {
		out.Result, out.Exact = rounded(n.rat, significant), false
	}
	if f, _ := n.rat.Float64(); !math.IsInf(f, 0) {
		out.Value = json.Number(out.Result)
	}
	return out
}

// rounded writes a number with so many significant digits, without an exponent and without zeros at the end.
func rounded(r *big.Rat, digits int) string {
	if r.Sign() == 0 {
		return "0"
	}
	// places is such that digits are left before and after the point together; the guess from the bits may be one off.
	abs := new(big.Rat).Abs(r)
	exponent := int(math.Floor(float64(abs.Num().BitLen()-abs.Denom().BitLen()) * math.Log10(2)))
	for abs.Cmp(tenTo(int64(exponent+1))) >= 0 {
		exponent++
	}
	for abs.Cmp(tenTo(int64(exponent))) < 0 {
		exponent--
	}
	places := digits - 1 - exponent
	if places <= 0 {
		return roundRat(r, int64(places)).FloatString(0)
	}
	text := r.FloatString(places)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}
