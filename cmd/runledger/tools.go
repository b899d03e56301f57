package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"runledger/tool"
	"runledger/tool/builtin"
	"runledger/tool/mcp"
)

// toolbox is what a worker can call: the built-in tools and those of the MCP servers, which come, change and go.
type toolbox struct {
	builtin []tool.Tool
	names   []string // of the servers, in order
	servers []*mcp.Server
	log     *slog.Logger
	// changes gives the tools after each change.
	changes chan *tool.Set
	stop    context.CancelFunc
	group   sync.WaitGroup
}

// openTools makes the built-in tools and connects to the MCP servers. One that cannot be reached takes nothing else down: its tools
// are missing, and come when it does.
func (c *config) openTools(ctx context.Context, log *slog.Logger) (*toolbox, error) {
	own, err := builtin.Tools(c.Tools)
	if err != nil {
		return nil, err
	}
	b := &toolbox{builtin: own, names: slices.Sorted(maps.Keys(c.MCPServers)), log: log, changes: make(chan *tool.Set)}
	b.servers = make([]*mcp.Server, len(b.names))
	errs := make([]error, len(b.names))
	var opening sync.WaitGroup
	for i, name := range b.names {
		opening.Go(func() {
			server := c.MCPServers[name]
			server.Log = log
			b.servers[i], errs[i] = mcp.Open(ctx, server)
		})
	}
	opening.Wait()
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stop = stop
	for i, err := range errs {
		if err != nil {
			b.close()
			return nil, fmt.Errorf("mcp_servers.%s: %w", b.names[i], err)
		}
	}
	news := make(chan struct{}, 1)
	for _, server := range b.servers {
		b.group.Go(func() {
			for {
				select {
				case <-following.Done():
					return
				case <-server.Changed():
				}
				select {
				case news <- struct{}{}:
				default:
				}
			}
		})
	}
	b.group.Go(func() { b.follow(following, news) })
	return b, nil
}

// set are the tools of this moment.
func (b *toolbox) set() (*tool.Set, error) {
	tools := slices.Clone(b.builtin)
	var away []string
	for i, server := range b.servers {
		theirs := server.Tools()
		if theirs == nil {
			away = append(away, b.names[i])
		}
		tools = append(tools, theirs...)
	}
	set, err := tool.NewSet(tools...)
	if err != nil {
		return nil, err
	}
	return set.WithAway(away...), nil
}

// follow gives the tools to changes whenever there is news of them.
func (b *toolbox) follow(ctx context.Context, news <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
		set, err := b.set()
		if err != nil {
			b.log.ErrorContext(ctx, "the tools stay as they were: others cannot be used", "error", err)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case b.changes <- set:
		}
	}
}

// close ends the servers.
func (b *toolbox) close() {
	b.stop()
	b.group.Wait()
	for _, s := range b.servers {
		if s != nil {
			s.Close()
		}
	}
}
