package kafkaproxy

import (
	"net"
	"sync"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	// plainPiece is what is read at once where there are no frames.
	plainPiece = 16 << 10
)

// connection is one client's, with the connection to the server that belongs
// to it. up and down each run in a goroutine.
type connection struct {
	link           *Link
	client, server net.Conn
	ended          chan struct{}
	endOnce        sync.Once

	mu       sync.Mutex
	detached bool               // the client was reset, the server's side lives on
	awaited  map[int32]*awaited // replies that matter to a fault, by correlation id
}

// awaited is a reply that a fault waits for.
type awaited struct {
	drop *Injected // reset the client in the place of passing it on
	held *held     // tell that the broker has answered
}

func newConnection(l *Link, client, server net.Conn) *connection {
	return &connection{link: l, client: client, server: server, ended: make(chan struct{}),
		awaited: make(map[int32]*awaited)}
}

// run passes bytes until both directions have ended.
func (c *connection) run() {
	var down sync.WaitGroup
	if c.link.plain {
		down.Go(func() { c.copy(c.client, c.server, Down) })
		c.copy(c.server, c.client, Up)
	} else {
		down.Go(c.down)
		c.up()
	}
	down.Wait()
	c.lose()
}

// copy passes bytes of a protocol that the proxy does not know. The end of one
// side ends the other.
func (c *connection) copy(to, from net.Conn, d Direction) {
	defer c.end(false)
	piece := make([]byte, plainPiece)
	for {
		n, err := from.Read(piece)
		if !c.link.gates[d].write(to, piece[:n], c.ended) || err != nil {
			return
		}
	}
}

// up passes requests on. When the client has gone, the connection stays until
// the broker has answered what was held.
func (c *connection) up() {
	for {
		frame, err := readFrame(c.client)
		if err != nil {
			break
		}
		r, err := parseRequest(frame)
		if err != nil || !c.forward(frame, r) {
			break
		}
	}
	for _, h := range c.outstanding() {
		select {
		case <-h.done:
		case <-c.ended:
		}
	}
	c.end(false)
}

// forward passes one request on, or does what a fault wants. It reports whether
// more requests can come.
func (c *connection) forward(frame []byte, r request) bool {
	fault := c.link.network.meet(r)
	if fault == nil {
		return c.send(frame)
	}
	switch fault.fault.Action {
	case Break:
		c.cut()
		fault.hit()
		return false
	case DropReply:
		c.await(r, &awaited{drop: fault})
		return c.send(frame)
	default:
		return c.hold(fault, frame, r)
	}
}

// hold keeps a request until it is released, and then sends it.
func (c *connection) hold(fault *Injected, frame []byte, r request) bool {
	late := fault.fault.Action == Late
	if late {
		c.mu.Lock()
		c.detached = true
		c.mu.Unlock()
		reset(c.client)
	}
	h := fault.keep()
	c.await(r, &awaited{held: h})
	select {
	case <-fault.released:
	case <-c.ended:
		return false // lose says so to who waits for it
	}
	return c.send(frame) && !late
}

func (c *connection) send(frame []byte) bool {
	return c.link.gates[Up].write(c.server, frame, c.ended)
}

// down passes replies on. A client that has gone is noticed by up.
func (c *connection) down() {
	defer c.end(false)
	for {
		frame, err := readFrame(c.server)
		if err != nil {
			return
		}
		correlation, err := correlationOf(frame)
		if err != nil {
			return
		}
		a := c.answered(correlation)
		if a != nil && a.drop != nil {
			c.cut()
			a.drop.hit()
			return
		}
		if a != nil {
			a.held.end(nil)
		}
		if !c.link.gates[Down].write(c.client, frame, c.ended) {
			return
		}
	}
}

// await registers interest in the reply to a request, before it is sent.
func (c *connection) await(r request, a *awaited) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaited[r.correlation] = a
}

// answered returns who waits for a reply, once.
func (c *connection) answered(correlation int32) *awaited {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.awaited[correlation]
	delete(c.awaited, correlation)
	return a
}

// outstanding returns the held requests whose replies have not come.
func (c *connection) outstanding() []*held {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*held
	for _, a := range c.awaited {
		if a.held != nil {
			all = append(all, a.held)
		}
	}
	return all
}

// lose tells those who still wait that no reply will come.
func (c *connection) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.awaited {
		if a.held != nil {
			a.held.end(ErrLost)
		}
	}
	clear(c.awaited)
}

// cut resets both sides, unless the client has been reset already and the rest
// is to be delivered late. It reports whether it did.
func (c *connection) cut() bool {
	c.mu.Lock()
	detached := c.detached
	c.mu.Unlock()
	if detached {
		return false
	}
	return c.end(true)
}

// end closes both sides, and reports whether they were open.
func (c *connection) end(abruptly bool) (was bool) {
	c.endOnce.Do(func() {
		was = true
		close(c.ended)
		if abruptly {
			reset(c.client)
			reset(c.server)
			return
		}
		_ = c.client.Close()
		_ = c.server.Close()
	})
	return was
}
