// Package python holds the test of produce.py, which is beside it. Without the build
// tag e2e it is empty.
package python
