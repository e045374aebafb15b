// Command bench measures what the gateway costs, against the same Caddy without
// it and against two peers. ./xcaddy.sh bench runs it.
//
// One run starts everything on the loopback interface: a provider, Redis
// servers, a Caddy for each configuration, the peers. It then goes through all
// of them in turn, round after round, so that what disturbs the machine for a
// while disturbs each of them alike. A ratio is that of two figures of the same
// round; the median of the rounds is reported, with the lowest and the highest.
//
// A round is worth nothing if the gateway did something else than what it is
// measured at. So each one checks that all answers were successes and that the
// provider received as many submits as there were first requests, and none of
// the replays.
//
// It is a module of its own: nothing of the peers enters the gateway's.
package main
