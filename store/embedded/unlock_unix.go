//go:build unix && !solaris && !aix

package embedded

import (
	"os"
	"syscall"
)

// unlock gives up bbolt's lock on a file. Closing the file does not, as long as
// its bytes are mapped into memory.
func unlock(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_UN) }
