//go:build !onceward_defects

package fault

// Is reports whether a defect is injected; in this build none is.
func Is(Defect) bool { return false }

// Crash ends the process at a place; in this build at none.
func Crash(Place) {}
