package fingerprint

import "errors"

var (
	// ErrBodyTooLarge means that a request body is over the maximum.
	ErrBodyTooLarge = errors.New("request body is over the maximum")

	// ErrBodyNotKept means that a body could not be written to its temporary
	// file.
	ErrBodyNotKept = errors.New("body cannot be kept")
)
