// Package fingerprint reads request bodies and says whether two requests are the
// same job: it digests method, path, query, media type and body, JSON by its
// meaning and forms by their parts, so that the retry of an SDK has the
// fingerprint of its first try, and another job has another one.
//
// It also has what else looks into bodies: JSON pointers.
//
// A fingerprint that is too fine costs an error message; one that is too coarse
// answers with another job. So whatever two providers might read in different
// ways counts by its bytes.
package fingerprint
