package idempotency

import "context"

// Finding is one thing that a store has found out about its server: its state, a
// setting, or what has become of its file. It holds nothing of a record and no
// secret, because it is logged and printed.
type Finding struct {
	// Server is where it is: the host:port of a server or the name by which it is
	// found, or the path of a file. It may be empty if the store does not know yet.
	Server string
	// Setting names what is looked at, in the server's own words if it has them:
	// maxmemory-policy, appendonly, …; connection for a server that cannot be asked,
	// and file for a file. A server has one finding at most for each Setting.
	Setting string
	Value   string
	// Loss says what can be lost, or does not work, because of the value. It is
	// empty if nothing is.
	Loss string
	// Refused: a store that was told to be strict grants no claims because of it.
	Refused bool
}

// Findings is what a Store may implement to say what is wrong with its server.
//
// A store that also reports to its owner, commonly by a function in its
// configuration, reports a finding when it comes and when it is over. What was
// reported as present and is not over is among its Findings. An event, such as a
// restart, is reported once, and is not among them.
type Findings interface {
	// Findings returns what is wrong, as far as it is known: all findings with a
	// Loss, and no other. It costs no round trip, and may be called as often as
	// metrics are scraped.
	Findings() []Finding
}

// Watcher is what a Store may implement to look after its server without being
// used.
type Watcher interface {
	// Watch looks now, and again and again until Close. It returns at once; further
	// calls do nothing.
	Watch()
}

// Inspector is what a Store may implement to have its server looked at on demand.
type Inspector interface {
	// Inspect looks now, and returns all that it sees, what is well included. A
	// server that cannot be asked is a finding, not an error.
	Inspect(ctx context.Context) []Finding
}
