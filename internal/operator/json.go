package operator

// NotNil makes an empty list a JSON [] and not null.
func NotNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Deref is a text that may be null.
func Deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Optional is a text that is null where it is empty.
func Optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
