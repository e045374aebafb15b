// Package idempotency is the protocol of the gateway: who may send a submit to
// a provider, what the provider's answer means, and what repeats are told. It
// knows neither Caddy nor a store's driver.
//
// # Promise
//
// A provider never receives two submits for one key unless it refused the
// first, or somebody explicitly decided to risk it; and nobody reads another
// scope's answer. Everything below serves that, also at the price of an answer:
// the package would rather say "we cannot know" than guess.
//
// # Authority
//
// The [Store] is the only authority. A process never decides from its own
// memory or clock that a key is free, that an attempt is dead, or that a record
// is its own: it asks, and the store decides in one atomic step, by its own
// clock and by the token of the attempt. What a process holds in memory is only
// what it works on and what it still owes the store; it can be a reason not to
// send, never one to send.
//
// # States
//
//	           Claim                       Complete
//	(absent) ─────────▶ InProgress ─────────────────────────▶ Completed
//	   ▲                 │      │                                 ▲
//	   │ Release:        │      │ MarkUncertain, or               │ Complete by
//	   │ refused, or     │      │ the lease runs out              │ the same attempt;
//	   │ never sent      │      ▼                                 │ DecideComplete
//	   ├─────────────────┘   Uncertain ───────────────────────────┘
//	   │                        │  │
//	   │ late refusal of the    │  │ Claim with TakeOver:
//	   │ same attempt;          │  └──▶ InProgress, for a new attempt
//	   │ DecideRelease          │
//	   └────────────────────────┘
//
// A released record is absent; but one that was taken over is Uncertain again,
// because nobody knows more about the attempt before than they did. An
// operator's DecideRelease removes that one, too: the operator does know, or
// takes the risk. An operator's Forget removes any record whose attempt is not
// alive, a Completed one and one that nobody can read included: what was stored
// as an acceptance may be none.
//
// A record belongs to one attempt, named by a random [Token]. An attempt that
// has lost its record changes nothing any more, whatever it learns.
//
// # Invariants
//
//   - A claim is acknowledged before the first byte goes to the provider.
//   - An acceptance is stored before the caller sees it, or is on its way to the
//     store for as long as the record lives.
//   - Completed never changes, but for an operator's Forget. InProgress never becomes absent by time passing:
//     an attempt that is not heard of is Uncertain when its lease is over.
//   - Retention, counted from the last transition, is the only timer that
//     removes a record.
//   - What cannot be read is an error, never absence.
//   - A first submit costs two round trips to the store, a replay costs one.
//   - A claim that the store grants for a record that this process works on, or
//     whose outcome it owes the store, is not sent.
//
// # Leases
//
// The store believes an attempt alive for one lease after each renewal, by the
// store's clock. The [Engine] renews the leases of all attempts of a process
// together, at a third of their length, from [Engine.Begin] until
// [Attempt.Conclude]. A lease that was lost is not had back: others may have
// been told that the outcome is unknown. The attempt still runs, and its answer
// is still the truth: if the record is its own, it ends there.
//
// # A store that forgets
//
// A store can lose records: it is flushed, fails over to a copy that lags, comes
// back empty, evicts, or its clock leaps past their end. To a process that still
// has to do with such a record the loss is known, because the store then grants
// a claim, or does not find the record, where it must not:
//
//   - For each record a process has one attempt at most that holds it: from the
//     claim until the store has the outcome, or until a refusal is on its way.
//     A claim that is granted meanwhile makes no second attempt. Its record
//     becomes that of the first: leases are renewed and the outcome is stored
//     under its token, sealed with its key. The repeat is told what the process
//     knows: that the submit is running, the answer, or that the outcome is
//     unknown; and reuse, with the claim taken back, if its request is another.
//   - A lease that is refused, and an outcome that is not applied, are claimed
//     again. Only a record that is absent is made anew that way. One that is
//     there says whose it is: the lease is lost, or the acceptance is late.
//   - From before a claim is sent until its reply is dealt with, or it has been
//     taken back, the process counts it. An outcome that meets a record in
//     progress meanwhile is not late: that record may turn out to be its own.
//   - An attempt gets another token only with the engine's mutex held, and an
//     outcome counts as stored only under the token that the attempt has then.
//
// A decision takes an attempt's record away for good: [Engine.Decide] in the same
// process, and a take-over of an outcome that is unknown. What this process runs,
// or has the answer of, is not unknown, and is not taken over by it. A release
// through another process cannot be told from a loss: the attempt that still runs
// then gets its record back, and repeats get its answer.
//
// What was stored and is lost afterwards nobody knows of. Against that a store
// has to be persistent, or to refuse claims when it has forgotten.
//
// # Duplicates
//
// A request with the key of a record, and another [Fingerprint], has reused the
// key, whatever the record's state. One with the same fingerprint gets what the
// record says: the replay, that the submit is running, or that its outcome is
// unknown. With [Policy] Wait a duplicate of a running submit is held until it
// is worth asking the store again. The end of an attempt of its own engine wakes
// it; for one of another process, the record is read again and again by one of
// all those who wait for it. To be woken means nothing: each asks the store with
// a claim of its own, so after a refusal one of them submits and the others go
// on waiting. A duplicate that has waited is known to be one, also if the store
// fails then ([ErrClaimedBefore]).
//
// # Operators
//
// An operator decides about uncertain records only, by [Engine.Decide]: gives
// the answer that the provider had given, or frees the key. The decision is on
// the attempt that the record belonged to when the operator looked; it takes
// the record away from that attempt for good. [Engine.List] finds the records:
// it asks the store for the headers of all, a part at a time.
//
// # Failures
//
// The store may have several clocks, one for each part of the records; that of a
// record's own part decides about it.
//
// A claim whose reply is lost is sent once more with the same token; the store
// recognises it. If that fails, too, nothing is sent to the provider, and the
// claim is taken back in the background. A claim can still be on its way then:
// it carries the moment after which the store must not grant it ([Claim]
// NotAfter), and taking back goes on until that moment is over.
//
// A conclusion that cannot be stored is tried again in the background with
// growing pauses, for as long as the record would live. If the process ends
// before, the record becomes Uncertain.
//
// A provider's answer is classified by [Policy]: what does not prove that the
// provider refused, or that nothing was sent, is unknown.
package idempotency
