package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

// fakeMode is the environment variable that turns the test binary into a server (or worse).
const fakeMode = "RUNLEDGER_FAKE_MCP"

func TestMain(m *testing.M) {
	if mode := os.Getenv(fakeMode); mode != "" {
		fake(mode)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// fake is the main function of the server that the tests talk to.
func fake(mode string) {
	switch mode {
	case "silent": // reads and never answers
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "noisy":
		fmt.Fprintln(os.Stderr, "first line")
		fmt.Fprintln(os.Stderr, strings.Repeat("x", 1<<20))
		fmt.Fprintln(os.Stderr, "cannot find the database")
		os.Exit(1)
	case "deaf": // answers nothing and reads nothing
		select {}
	case "babbler":
		fmt.Println("Welcome to my server!")
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "hold": // a grandchild: holds a connection until it is killed
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		hold(os.Getenv("FAKE_ADDR"), "holding")
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		_ = serveFake()
		hold(os.Getenv("FAKE_ADDR"), "staying")
	case "flaky": // starts only while the file is not there
		if _, err := os.Stat(os.Getenv("FAKE_FILE")); err == nil {
			os.Exit(1)
		}
		_ = serveFake()
	default:
		_ = serveFake()
	}
}

// hold connects, says a word and waits for the other side to hang up.
func hold(addr, word string) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	_, _ = fmt.Fprintln(conn, word)
	_, _ = io.Copy(io.Discard, conn)
}

// dial connects to the test and returns a way to say a word and one to wait for a word.
func dial(addr string) (say func(string), listen func(), hangUp func()) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		os.Exit(9)
	}
	r := bufio.NewReader(conn)
	return func(word string) { _, _ = fmt.Fprintln(conn, word) }, func() { _, _ = r.ReadString('\n') }, func() { _ = conn.Close() }
}

type fakeArgs struct {
	Addr string `json:"addr,omitempty"`
	Text string `json:"text,omitempty"`
	Size int    `json:"size,omitempty"`
}

// plug, once it has been put in, reads the beginning of one more message, says so and reads no more.
type plug struct {
	*os.File
	in atomic.Pointer[string]
}

func (p *plug) Read(data []byte) (int, error) {
	n, err := p.File.Read(data)
	if addr := p.in.Load(); addr != nil {
		hold(*addr, "plugged")
	}
	return n, err
}

func serveFake() error {
	input := &plug{File: os.Stdin}
	return newFake(input).Run(context.Background(), &sdk.IOTransport{Reader: input, Writer: os.Stdout})
}

// newFake is the server, whatever it is reached over.
func newFake(input *plug) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "fake", Version: "1"}, nil)
	yes := true
	object := json.RawMessage(`{"type": "object"}`)
	text := func(format string, args ...any) *sdk.CallToolResult {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf(format, args...)}}}
	}
	typed := func(name string, a *sdk.ToolAnnotations, fn func(context.Context, *sdk.CallToolRequest, fakeArgs) (*sdk.CallToolResult, error)) {
		sdk.AddTool(s, &sdk.Tool{Name: name, Description: "Does " + name + ".", Annotations: a},
			func(ctx context.Context, r *sdk.CallToolRequest, in fakeArgs) (*sdk.CallToolResult, any, error) {
				out, err := fn(ctx, r, in)
				return out, nil, err
			})
	}
	raw := func(name string, fn sdk.ToolHandler) {
		s.AddTool(&sdk.Tool{Name: name, Title: "Title of " + name, InputSchema: object}, fn)
	}
	echo := func(_ context.Context, _ *sdk.CallToolRequest, in fakeArgs) (*sdk.CallToolResult, error) {
		return text("%s", in.Text), nil
	}
	typed("echo", &sdk.ToolAnnotations{IdempotentHint: true, DestructiveHint: &yes}, echo)
	typed("read", &sdk.ToolAnnotations{ReadOnlyHint: true}, echo)
	typed("destroy", &sdk.ToolAnnotations{DestructiveHint: &yes}, echo)
	typed("plain", nil, echo)
	typed("dotted.name", nil, echo)
	typed("dotted_name", nil, echo)
	typed("fail", nil, func(context.Context, *sdk.CallToolRequest, fakeArgs) (*sdk.CallToolResult, error) {
		return nil, errors.New("no such account")
	})
	typed("die", nil, func(context.Context, *sdk.CallToolRequest, fakeArgs) (*sdk.CallToolResult, error) {
		os.Exit(3)
		return nil, nil
	})
	typed("environment", nil, func(context.Context, *sdk.CallToolRequest, fakeArgs) (*sdk.CallToolResult, error) {
		dir, _ := os.Getwd()
		return text("%s\n%s", dir, strings.Join(os.Environ(), "\n")), nil
	})
	typed("wait", nil, func(ctx context.Context, _ *sdk.CallToolRequest, in fakeArgs) (*sdk.CallToolResult, error) {
		say, _, hangUp := dial(in.Addr)
		defer hangUp()
		say("waiting")
		<-ctx.Done()
		say("cancelled")
		return text("too late"), nil
	})
	typed("progress", nil, func(ctx context.Context, r *sdk.CallToolRequest, in fakeArgs) (*sdk.CallToolResult, error) {
		_, listen, hangUp := dial(in.Addr)
		defer hangUp()
		for i, message := range []string{"half way", ""} {
			_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
				ProgressToken: r.Params.GetProgressToken(), Message: message, Progress: float64(i + 1), Total: 4,
			})
			listen()
		}
		return text("done"), nil
	})
	typed("spawn", nil, func(_ context.Context, _ *sdk.CallToolRequest, in fakeArgs) (*sdk.CallToolResult, error) {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), fakeMode+"=hold", "FAKE_ADDR="+in.Addr)
		child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
		return text("spawned"), child.Start()
	})
	typed("large", nil, func(_ context.Context, _ *sdk.CallToolRequest, in fakeArgs) (*sdk.CallToolResult, error) {
		return text("%s", strings.Repeat("é", in.Size)), nil
	})
	typed("picture", nil, func(context.Context, *sdk.CallToolRequest, fakeArgs) (*sdk.CallToolResult, error) {
		out := text("a picture")
		out.Content = append(out.Content, &sdk.ImageContent{MIMEType: "image/png", Data: []byte("png"), Annotations: &sdk.Annotations{Priority: 1}},
			&sdk.TextContent{Text: "and more"})
		return out, nil
	})
	raw("key", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		key, _ := json.Marshal(r.Params.Meta[KeyMeta])
		// A number that float64 cannot hold, with spaces that a decoder would lose.
		return &sdk.CallToolResult{StructuredContent: json.RawMessage(fmt.Sprintf(`{"id":9007199254740993,"key":%s,"args":%s}`, key, r.Params.Arguments))}, nil
	})
	raw("refuse", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "what is that?"}
	})
	raw("break", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "stack overflow"}
	})
	s.AddTool(&sdk.Tool{Name: "find", Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}, InputSchema: json.RawMessage(`{"type": "object",
		"properties": {"key": {"type": "string", "maxLength": 200}, "say": {}, "more": {"type": "object"}}, "required": ["key"], "additionalProperties": false}`)},
		func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var in struct{ Say json.RawMessage }
			if err := json.Unmarshal(r.Params.Arguments, &in); err != nil {
				return nil, err
			}
			meta, _ := json.Marshal(r.Params.Meta[KeyMeta])
			out := &sdk.CallToolResult{StructuredContent: json.RawMessage(fmt.Sprintf(`{"args":%s,"meta":%s}`, r.Params.Arguments, meta))}
			if in.Say != nil && string(in.Say) != "null" {
				return out, json.Unmarshal(in.Say, out)
			}
			return out, nil
		})
	s.AddTool(&sdk.Tool{Name: "bad", InputSchema: json.RawMessage(`{"type": "object", "properties": {"a": {"$ref": "https://example.org/a.json"}}}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return text(""), nil })
	typed("plug", nil, func(_ context.Context, _ *sdk.CallToolRequest, in fakeArgs) (*sdk.CallToolResult, error) {
		input.in.Store(&in.Addr)
		return text("plugged"), nil
	})
	typed("grow", nil, func(_ context.Context, _ *sdk.CallToolRequest, in fakeArgs) (*sdk.CallToolResult, error) {
		typed(in.Text, nil, echo)
		return text("grown"), nil
	})
	typed("shrink", nil, func(_ context.Context, _ *sdk.CallToolRequest, in fakeArgs) (*sdk.CallToolResult, error) {
		s.RemoveTools(in.Text)
		return text("shrunk"), nil
	})
	return s
}
