package handlers

import "errors"

// The error classes. Every error that crosses a package border wraps exactly one of them;
// the runner's result table (infra/bus) and the exit codes (functions/internal/app) are
// decided by class alone. An error of no class counts as ErrUnavailable: it is retried.
var (
	// ErrInvalid: the input is wrong and will be wrong again. The message names the field and the fix.
	ErrInvalid = errors.New("invalid")
	// ErrConflict: the document moved under the writer. Read again, decide again.
	ErrConflict = errors.New("conflict")
	// ErrNotFound: the thing named does not exist.
	ErrNotFound = errors.New("not found")
	// ErrPermanent: no retry can help (a fenced attempt, a store that ignores conditions).
	ErrPermanent = errors.New("permanent")
	// ErrUnavailable: the outcome is unknown or the other side is down. Retry; a write may have taken effect.
	ErrUnavailable = errors.New("unavailable")
	// ErrIgnored: a valid event that changes nothing (not ours, out of date, applied already). It is acked and counted.
	ErrIgnored = errors.New("ignored")
)

// Class returns the sentinel that err wraps, ErrUnavailable for any other error, nil for nil.
func Class(err error) error {
	if err == nil {
		return nil
	}
	for _, class := range []error{ErrInvalid, ErrConflict, ErrNotFound, ErrPermanent, ErrIgnored} {
		if errors.Is(err, class) {
			return class
		}
	}
	return ErrUnavailable
}
