//go:build !unix || solaris || aix

package embedded

import "os"

// unlock does nothing where a file that is closed is locked no more.
func unlock(*os.File) error { return nil }
