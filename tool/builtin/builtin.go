// Package builtin holds the tools that come with Runledger, one file each: a calculator, a clock and HTTP requests. To add
// one, write its file and name it in [Tools].
//
// The package may import runledger/agent, runledger/tool, the standard library and github.com/google/jsonschema-go.
package builtin

import (
	"time"

	"runledger/tool"
)

// Config is what the built-in tools can be told. The zero value is fine.
type Config struct {
	// HTTP says what http_request may do.
	HTTP HTTPConfig `yaml:"http_request"`
	// Now is the clock's time; nil means the time of the machine.
	Now func() time.Time `yaml:"-"`
}

// Tools makes the built-in tools. The error names what is wrong with the configuration.
func Tools(cfg Config) ([]tool.Tool, error) {
	httpRequest, err := HTTPRequest(cfg.HTTP)
	if err != nil {
		return nil, err
	}
	return []tool.Tool{
		Calculator(),
		Clock(cfg.Now),
		httpRequest,
	}, nil
}
