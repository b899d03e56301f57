// Package rules holds this repository to what its compiler cannot check: who may import whom, what stays out of the
// module, how tests wait, how long a file may be, and that the compose file fits the program it starts. It holds tests
// only. Each rule says why it is there; a rule that stands in the way is changed here, in the open, and not worked around.
package rules
