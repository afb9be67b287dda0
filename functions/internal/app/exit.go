package app

import (
	"context"
	"errors"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/supervise"
)

// Exit codes of every command, beside those of `reprieve run` (supervise.Exit*). Numbers follow
// sysexits.h where it has one.
const (
	ExitFailure     = 1   // something could be done only in part, or a check failed
	ExitUsage       = 64  // wrong input: the message names it
	ExitData        = 65  // input data is malformed
	ExitNotFound    = 66  // the job or checkpoint named does not exist
	ExitUnavailable = 69  // the store or the bus does not answer
	ExitPermanent   = 70  // no retry can help
	ExitConflict    = 73  // another live attempt holds the job, or this one was superseded, or the job has ended
	ExitNotExec     = 126 // the command cannot be executed
	ExitNoCommand   = 127 // the command does not exist
)

// ExitCode returns the exit code for err, by its class.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, supervise.ErrNoCommand):
		return ExitNoCommand
	case errors.Is(err, supervise.ErrNotExecutable):
		return ExitNotExec
	case errors.Is(err, handlers.ErrSuperseded), errors.Is(err, handlers.ErrEnded):
		return ExitConflict
	case errors.Is(err, context.Canceled):
		return ExitFailure
	}
	switch handlers.Class(err) {
	case handlers.ErrInvalid:
		return ExitUsage
	case handlers.ErrNotFound:
		return ExitNotFound
	case handlers.ErrConflict:
		return ExitConflict
	case handlers.ErrPermanent:
		return ExitPermanent
	}
	return ExitUnavailable
}
