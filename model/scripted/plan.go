package scripted

import (
	"encoding/json"
	"strings"

	"runledger/agent"
	"runledger/model"
)

// plan writes the task graph for the newest wish: a tool node for each task, side by side where the text does not order
// them, and one llm node that answers from all of them.
func plan(req model.Request) string {
	tools := req.Tools
	if len(tools) == 0 {
		tools = listedTools(req.Messages)
	}
	used := make(map[string]bool)
	var p agent.Plan
	inputs := make(map[string]json.RawMessage)
	var all, earlier, current []string
	stage := 0
	for _, t := range tasks(wish(req.Messages), tools) {
		if t.stage > stage {
			stage, earlier, current = t.stage, current, nil
		}
		id := freeName(nodeID(t.tool), "_", used)
		used[id] = true
		p.Nodes = append(p.Nodes, agent.Node{
			ID: id, Kind: agent.ToolNode, Tool: t.tool, Args: t.args, DependsOn: earlier, ExpectedOutput: expected(t),
		})
		inputs[freeName(t.label, " ", inputs)] = object("$from", "/nodes/"+id+"/output")
		all, current = append(all, id), append(current, id)
	}
	final := agent.Node{ID: freeName("reply", "_", used), Kind: agent.LLMNode, Prompt: "Answer the user's request."}
	if len(all) > 0 {
		final.Prompt = "Answer the user's request from the results."
		final.Inputs, final.DependsOn = inputs, all
		final.ExpectedOutput = "a short answer that holds every result"
		p.Constraints = []string{"Every result comes from a tool."}
	}
	p.Nodes = append(p.Nodes, final)
	return string(encode(p))
}

// wish is the user's newest message. When the last thing said to the model is why its plan was refused, it is the one before.
func wish(messages []model.Message) string {
	text := ""
	for i := len(messages) - 1; i >= 0; i-- {
		switch m := messages[i]; m.Role {
		case model.User:
			text = m.Text
			if i == 0 || !isPlan(messages[i-1]) {
				return text
			}
		case model.Assistant, model.System, model.ToolRole:
		}
	}
	return text
}

func isPlan(m model.Message) bool {
	var p struct {
		Nodes []json.RawMessage `json:"nodes"`
	}
	return m.Role == model.Assistant && json.Unmarshal([]byte(m.Text), &p) == nil && len(p.Nodes) > 0
}

// listedTools reads tools out of a system message that lists them as a JSON array, since a vendor's API does not offer tools
// to a model that is to answer in JSON.
func listedTools(messages []model.Message) []model.Tool {
	for _, m := range messages {
		if m.Role != model.System {
			continue
		}
		for tries, at := 0, 0; tries < 1000; tries++ {
			i := strings.IndexByte(m.Text[at:], '[')
			if i < 0 {
				break
			}
			at += i
			var tools []model.Tool
			if json.NewDecoder(strings.NewReader(m.Text[at:])).Decode(&tools) == nil && len(tools) > 0 && tools[0].Name != "" {
				return tools
			}
			at++
		}
	}
	return nil
}

// nodeID makes a node id of a tool's name. Its length leaves room for a number behind it.
func nodeID(tool string) string {
	id := strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r < 0x80 && plainRune(r) {
			return r
		}
		return '_'
	}, tool)
	id = id[:min(len(id), 56)]
	switch id {
	case "", agent.PlanNodeID, agent.AnswerNodeID, agent.MainNodeID:
		return "tool_" + id
	}
	return id
}

// freeName is name, or name with the first number that makes it new.
func freeName[V any](name, separator string, used map[string]V) string {
	free := name
	for n := 2; ; n++ {
		if _, taken := used[free]; !taken {
			return free
		}
		free = name + separator + itoa(n)
	}
}

func expected(t task) string {
	switch t.tool {
	case calculatorTool:
		return "the value of " + clip(t.label, 200)
	case clockTool:
		return t.label
	case httpTool:
		return "the answer to " + clip(t.label, 200)
	}
	return "what " + t.label + " gives"
}
