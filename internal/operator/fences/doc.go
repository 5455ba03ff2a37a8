// Package fences is the effects outside a consumer's database, as an operator looks at
// them and settles those whose end nobody knows.
//
// A PENDING fence is live while an attempt holds its lease, expired afterwards, and stale
// once the provider may have forgotten its key. What an operator says of it is planned,
// which changes nothing, and carried out by a compare-and-set of the fence's epoch and
// lease: [ErrMoved] says that an attempt came between. The lease of a fence that is live
// can only be released, what is not live can only be reconciled.
package fences
