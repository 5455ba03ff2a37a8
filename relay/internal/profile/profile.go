// Package profile serves what a running program does and holds, as `go tool pprof` reads it: the
// pages of net/http/pprof, without its import, which gives every program that has it, and serves
// http.DefaultServeMux, these pages unasked.
//
// A profile names functions, and no values: nothing of an event is in it. One CPU profile is taken
// at a time, by the whole process.
package profile

import (
	"fmt"
	"net/http"
	"runtime/pprof"
	"strconv"
	"time"
)

// Prefix is where the pages stand.
const Prefix = "/debug/pprof/"

// The length of a CPU profile.
const (
	defaultLength = 30 * time.Second
	maxLength     = 2 * time.Minute
	// grace is for the answer, after that.
	grace = 10 * time.Second
)

// Register adds the pages to a mux: /debug/pprof/profile?seconds=30 for the CPU, which takes so
// long, and /debug/pprof/NAME for the others that package runtime/pprof names (heap, allocs,
// goroutine, threadcreate, block, mutex), with debug=1 or 2 as text.
func Register(mux *http.ServeMux) {
	mux.HandleFunc("GET "+Prefix+"profile", cpu)
	mux.HandleFunc("GET "+Prefix+"{name}", named)
}

func cpu(w http.ResponseWriter, r *http.Request) {
	length := defaultLength
	if text := r.FormValue("seconds"); text != "" {
		n, err := strconv.Atoi(text)
		length = time.Duration(n) * time.Second
		if err != nil || length < time.Second || length > maxLength {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("seconds: want a whole number from 1 to %.0f", maxLength.Seconds()))
			return
		}
	}
	// The server's own limit is for pages. Where there is none that can be moved, it holds.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(length + grace))
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := pprof.StartCPUProfile(w); err != nil {
		refuse(w, http.StatusConflict, "another CPU profile is being taken; try again when it has ended")
		return
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(length):
	case <-r.Context().Done():
	}
}

func named(w http.ResponseWriter, r *http.Request) {
	p := pprof.Lookup(r.PathValue("name"))
	if p == nil {
		refuse(w, http.StatusNotFound, "there is no such profile")
		return
	}
	debug := 0
	if text := r.FormValue("debug"); text != "" {
		var err error
		if debug, err = strconv.Atoi(text); err != nil || debug < 0 || debug > 2 {
			refuse(w, http.StatusBadRequest, "debug: want 0, 1 or 2")
			return
		}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if debug > 0 {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	_ = p.WriteTo(w, debug) // the client went away
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text) // the client went away
}
