// Package payments charges a card for each order through a provider that is called
// over HTTP: an effect that no transaction of ours can hold. [consumer.Fence] gives
// every attempt the same key, and keeps the provider's answer.
package payments
