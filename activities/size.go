package activities

import "runledger/agent"

// tooLarge refuses a result that is larger than the record takes, nil when it is not. What an external effect has done stays done:
// nobody has its result, and a person has to say what became of it.
func tooLarge(c command, size int) error {
	if size <= agent.MaxResultBytes {
		return nil
	}
	of := "command " + c.call.CommandID
	if c.begin.Tool != "" {
		of += ": tool " + c.begin.Tool
	}
	err := agent.Failed(agent.CodeTooLarge, "%s gave a result of %d bytes; at most %d can be kept", of, size, agent.MaxResultBytes)
	if c.begin.Effect == agent.External {
		err.Fault = agent.FaultUnknown
	}
	return err
}
