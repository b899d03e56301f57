package builtin

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// Limits of the calculator. A number of maxBits is some 1,200 digits: one operation on it takes microseconds, and an
// expression has room for a few thousand operations at most.
const (
	maxExpression = 4096
	maxNesting    = 100
	maxBits       = 4096
)

// number is a fraction. exact is false once a root has been rounded on the way to it.
type number struct {
	rat   *big.Rat
	exact bool
}

var (
	errDivision = errors.New("division by zero")
	errTooLarge = errors.New("the numbers become too large")
)

// evaluate computes an expression:
//
//	sum     = product { ("+" | "-") product }
//	product = unary { ("*" | "/" | "%") unary }
//	unary   = ("+" | "-") unary | power
//	power   = atom [ ("^" | "**") unary ]            so -2^2 is -4, 2^-1 is 0.5 and 2^3^2 is 2^9
//	atom    = digits | name "(" sum { "," sum } ")" | "(" sum ")"
//
// The signs × · ÷ and − stand for * * / and -. An error names the column that it is about, counted in characters from 1.
func evaluate(expression string) (number, error) {
	if len(expression) > maxExpression {
		return number{}, fmt.Errorf("the expression has %d bytes; %d are allowed", len(expression), maxExpression)
	}
	p := &parser{text: []rune(expression)}
	n, err := p.sum()
	if err == nil && p.peek() != 0 {
		err = p.unexpected()
	}
	if err != nil {
		return number{}, err
	}
	return n, nil
}

type parser struct {
	text  []rune
	at    int
	depth int
}

// peek skips blanks and returns the next character, 0 at the end, written in the plain form of operators.
func (p *parser) peek() rune {
	for p.at < len(p.text) && strings.ContainsRune(" \t\r\n\u00a0", p.text[p.at]) {
		p.at++
	}
	if p.at == len(p.text) {
		return 0
	}
	switch r := p.text[p.at]; r {
	case '×', '·':
		return '*'
	case '÷':
		return '/'
	case '−':
		return '-'
	case 0:
		return '\ufffd' // a NUL in the text is no end
	default:
		return r
	}
}

// operator reads ^ or one of the characters in set. ** counts as ^.
func (p *parser) operator(set string) (rune, bool) {
	r := p.peek()
	width := 1
	if r == '*' && p.at+1 < len(p.text) && p.text[p.at+1] == '*' {
		r, width = '^', 2
	}
	if r == 0 || !strings.ContainsRune(set, r) {
		return 0, false
	}
	p.at += width
	return r, true
}

func (p *parser) errorf(column int, format string, args ...any) error {
	return fmt.Errorf("column %d: %w", column+1, fmt.Errorf(format, args...))
}

func (p *parser) unexpected() error {
	r := p.peek()
	switch {
	case r == 0:
		return p.errorf(p.at, "the expression ends too early")
	case r == '%':
		return p.errorf(p.at, "unexpected %%: it is the remainder of a division; for a percentage divide by 100")
	}
	return p.errorf(p.at, "unexpected %q", p.text[p.at])
}

func (p *parser) sum() (number, error) {
	return p.chain("+-", p.product)
}

func (p *parser) product() (number, error) {
	return p.chain("*/%", p.unary)
}

// chain reads operands joined by operators of one rank, from left to right.
func (p *parser) chain(operators string, operand func() (number, error)) (number, error) {
	left, err := operand()
	if err != nil {
		return number{}, err
	}
	for {
		op, ok := p.operator(operators)
		if !ok {
			return left, nil
		}
		column := p.at - 1
		right, err := operand()
		if err != nil {
			return number{}, err
		}
		if left, err = apply(op, left, right); err != nil {
			return number{}, p.errorf(column, "%w", err)
		}
	}
}

func (p *parser) unary() (number, error) {
	if p.depth++; p.depth > maxNesting {
		return number{}, p.errorf(p.at, "nested deeper than %d levels", maxNesting)
	}
	defer func() { p.depth-- }()
	sign, ok := p.operator("+-")
	if !ok {
		return p.power()
	}
	n, err := p.unary()
	if err == nil && sign == '-' {
		n.rat = new(big.Rat).Neg(n.rat)
	}
	return n, err
}

func (p *parser) power() (number, error) {
	base, err := p.atom()
	if err != nil {
		return number{}, err
	}
	column := p.at
	if _, ok := p.operator("^"); !ok {
		return base, nil
	}
	exponent, err := p.unary()
	if err != nil {
		return number{}, err
	}
	n, err := power(base, exponent)
	if err != nil {
		return number{}, p.errorf(column, "%w", err)
	}
	return n, nil
}

func (p *parser) atom() (number, error) {
	switch r := p.peek(); {
	case r == '(':
		p.at++
		n, err := p.sum()
		if err == nil {
			err = p.expect(')')
		}
		return n, err
	case isDigit(r) || r == '.':
		return p.literal()
	case isLetter(r):
		return p.function()
	}
	return number{}, p.unexpected()
}

func (p *parser) expect(want rune) error {
	if p.peek() != want {
		return p.unexpected()
	}
	p.at++
	return nil
}

func isDigit(r rune) bool { return r >= '0' && r <= '9' }

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

// literal reads 12, 1.5, .5, 1. or 2.5e-3.
func (p *parser) literal() (number, error) {
	start := p.at
	digits, zeros := p.digits(), 0
	if p.at < len(p.text) && p.text[p.at] == '.' {
		p.at++
		zeros = p.digits()
		digits += zeros
	}
	if digits == 0 {
		p.at = start
		return number{}, p.unexpected()
	}
	if mark := p.at; p.at < len(p.text) && (p.text[p.at] == 'e' || p.text[p.at] == 'E') {
		p.at++
		if p.at < len(p.text) && (p.text[p.at] == '+' || p.text[p.at] == '-') {
			p.at++
		}
		// Four digits of exponent are beyond the limit already; more must not reach the conversion, which would obey.
		if n := p.digits(); n == 0 || n > 4 {
			p.at = mark
			return number{}, p.errorf(mark, "an exponent has one to four digits")
		}
	}
	rat, ok := new(big.Rat).SetString(string(p.text[start:p.at]))
	if !ok {
		return number{}, p.errorf(start, "%q is not a number", string(p.text[start:p.at]))
	}
	n, err := checked(rat, true)
	if err != nil {
		return number{}, p.errorf(start, "%w", err)
	}
	return n, nil
}

func (p *parser) digits() int {
	start := p.at
	for p.at < len(p.text) && isDigit(p.text[p.at]) {
		p.at++
	}
	return p.at - start
}

func (p *parser) function() (number, error) {
	start := p.at
	for p.at < len(p.text) && (isLetter(p.text[p.at]) || isDigit(p.text[p.at])) {
		p.at++
	}
	name := string(p.text[start:p.at])
	fn, ok := functions[name]
	if !ok {
		return number{}, p.errorf(start, "there is no function %q; there are abs, ceil, floor, max, min, round, sqrt", name)
	}
	if err := p.expect('('); err != nil {
		return number{}, err
	}
	var args []number
	for {
		n, err := p.sum()
		if err != nil {
			return number{}, err
		}
		args = append(args, n)
		if p.peek() != ',' {
			break
		}
		p.at++
	}
	if err := p.expect(')'); err != nil {
		return number{}, err
	}
	if len(args) > fn.most {
		return number{}, p.errorf(start, "%s takes at most %d arguments, not %d", name, fn.most, len(args))
	}
	n, err := fn.apply(args)
	if err != nil {
		return number{}, p.errorf(start, "%s: %w", name, err)
	}
	return n, nil
}
