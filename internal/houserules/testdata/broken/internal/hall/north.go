// Package hall has a receiver in five files, which is one too many.
package hall

// T is the receiver; another one is in four of them.
type T[K any] struct{}

type other struct{}

func (*T[K]) north() {}

func (other) north() {}
