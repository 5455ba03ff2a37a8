package publisher

// Validate reports what [New] would refuse without a connection; the error names
// field and value.
func (c Config) Validate() error {
	_, err := c.resolve()
	return err
}
