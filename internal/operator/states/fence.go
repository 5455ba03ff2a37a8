package states

// States of a fence.
const (
	FencePending  = "PENDING"
	FenceComplete = "COMPLETE"
)
