package handlers

import (
	"fmt"
	"time"

	"github.com/reprieve-dev/reprieve/events"
)

// ErrSuperseded: the caller's claim is not the current one any more, or the job has ended. Its
// children have to stop; nothing it writes counts. It is an ErrPermanent.
var ErrSuperseded = fmt.Errorf("%w: superseded", ErrPermanent)

// ErrReserved: the attempt is reserved for a launched process, so no other start may take the job
// now. It is an ErrConflict.
var ErrReserved = fmt.Errorf("%w: reserved", ErrConflict)

// ErrHeld: another attempt is alive. It is an ErrConflict.
var ErrHeld = fmt.Errorf("%w: held by a live attempt", ErrConflict)

// ErrEnded: the job is in a terminal state; a person can retry it. It is an ErrPermanent.
var ErrEnded = fmt.Errorf("%w: the job has ended", ErrPermanent)

// NewJob returns the record of a job that nobody has started: Reserved, attempt 1. It is written
// create-only.
func NewJob(name, uid string, restarter Restarter, launch *Launch, now time.Time) Job {
	return Job{
		Format: 1, UID: uid, Name: name, State: Pending, Seq: 1, Attempt: 1, Nodes: 1,
		Restarter: restarter, Launch: launch, Created: now.UTC(), Updated: now.UTC(),
	}
}

// Claim gives a reserved attempt to the process that was started for it. ErrIgnored if it holds
// it already, ErrConflict if the attempt is not to be had: the process then behaves as if no
// attempt had been given to it.
func (j Job) Claim(attempt int, c Claim, now time.Time) (Job, error) {
	switch {
	case j.Attempt == attempt && j.Current(c.ID):
		return j, fmt.Errorf("%w: attempt %d is claimed already", ErrIgnored, attempt)
	case !j.State.Reserved() || j.Attempt != attempt || len(j.Claims) > 0:
		return j, fmt.Errorf("%w: attempt %d of %s cannot be claimed: the job is %s at attempt %d", ErrConflict, attempt, j.Name, j.State, j.Attempt)
	}
	return j.begin(now).start(c), nil
}

// StartInPlace allocates the next attempt for a process that was started without one (a person, a
// platform's restart) and claims it. leaseOver says that the current attempt, if there is one, is
// known dead or has had no heartbeat for a lease. Errors: ErrIgnored (holds it already), ErrHeld,
// ErrReserved (wait, then look again), ErrEnded. The returned job can also be failed: the attempt
// that was found dead was one too many.
func (j Job) StartInPlace(c Claim, leaseOver bool, now time.Time) (Job, error) {
	if j.Current(c.ID) {
		return j, fmt.Errorf("%w: attempt %d is claimed already", ErrIgnored, j.Attempt)
	}
	switch {
	case j.State.Terminal():
		return j, fmt.Errorf("%w: %s %s; `reprieve jobs retry %s` starts it again", ErrEnded, j.Name, j.State, j.Name)
	case j.State.Reserved():
		return j, fmt.Errorf("%w: attempt %d of %s", ErrReserved, j.Attempt, j.Name)
	case j.State.Live() && !leaseOver:
		return j, fmt.Errorf("%w: attempt %d of %s on %s", ErrHeld, j.Attempt, j.Name, j.node())
	case j.State.Live():
		lost, err := j.LoseLease(now)
		if err != nil || lost.State.Terminal() {
			return lost, err
		}
		j = lost
	}
	return j.begin(now).allocate().start(c), nil
}

// LoseLease ends an attempt whose heartbeat has stopped. It counts as a preemption.
func (j Job) LoseLease(now time.Time) (Job, error) {
	if !j.State.Live() {
		return j, fmt.Errorf("%w: %s is %s", ErrIgnored, j.Name, j.State)
	}
	return j.begin(now).preempted(CauseLostLease, fmt.Sprintf("attempt %d sent no heartbeat for a lease", j.Attempt)), nil
}

// Interrupt hands over: the claimant stopped its children because of cause (a notice kind, or
// CauseSigterm). ErrIgnored if the job is interrupted under this claim already.
func (j Job) Interrupt(claim, cause, detail string, now time.Time) (Job, error) {
	if j.State == Interrupted && j.Claimed(claim) || j.reported(claim) {
		return j, fmt.Errorf("%w: interrupted already", ErrIgnored)
	}
	if !j.Current(claim) {
		return j, j.superseded()
	}
	if j.Notice != nil {
		cause = string(j.Notice.Kind)
	}
	return j.begin(now).preempted(cause, detail), nil
}

// End records that the claimant's child ended by itself with code. A code of 0 ends the job, also
// when somebody has declared this attempt dead meanwhile and nobody else has started. Any other
// code counts as a failure while running, as a preemption while preempting.
func (j Job) End(claim string, code int, detail string, now time.Time) (Job, error) {
	switch {
	case code == 0 && j.State == Succeeded && j.Claimed(claim):
		return j, fmt.Errorf("%w: succeeded already", ErrIgnored)
	case code == 0 && j.State == Interrupted && j.Claimed(claim), code == 0 && j.Current(claim):
		return j.begin(now).moveTo(Succeeded, CauseExit, detail, events.TypeJobSucceeded), nil
	case code != 0 && j.reported(claim):
		return j, fmt.Errorf("%w: its end is recorded already", ErrIgnored)
	case !j.Current(claim):
		return j, j.superseded()
	case j.State == Preempting:
		return j.begin(now).preempted(string(j.Notice.Kind), detail), nil
	}
	j = j.begin(now)
	j.Failures++
	if budget := j.failureBudget(); j.Failures > budget {
		return j.moveTo(Failed, CauseExit, fmt.Sprintf("%s; that was failure %d of at most %d", detail, j.Failures, budget), events.TypeJobFailed), nil
	}
	return j.interrupted(CauseExit, detail), nil
}

// Reserve reserves the next attempt of an interrupted job for a process that is about to be
// launched. ErrIgnored where nothing is to be launched now: not interrupted, another restarter, a
// SIGTERM that nothing has explained, or a pause that is not over.
func (j Job) Reserve(now time.Time) (Job, error) {
	switch {
	case j.State != Interrupted:
		return j, fmt.Errorf("%w: %s is %s", ErrIgnored, j.Name, j.State)
	case j.Restarter != RestarterReprieve:
		return j, fmt.Errorf("%w: %s is restarted by %s", ErrIgnored, j.Name, j.Restarter)
	case j.Cause == CauseSigterm:
		return j, fmt.Errorf("%w: nobody knows why %s got SIGTERM; a notice or `jobs retry` starts it", ErrIgnored, j.Name)
	case j.RetryAt != nil && now.Before(*j.RetryAt):
		return j, fmt.Errorf("%w: %s waits until %s", ErrIgnored, j.Name, j.RetryAt.Format(time.RFC3339))
	}
	return j.begin(now).allocate().reserved(j.Cause, j.Detail), nil
}

// PassOver gives up a reservation that nobody claimed, and reserves the next attempt under a new
// launch name: launching the old name again would find the dead object.
func (j Job) PassOver(attempt int, now time.Time) (Job, error) {
	if !j.State.Reserved() || j.Attempt != attempt || len(j.Claims) > 0 {
		return j, fmt.Errorf("%w: attempt %d of %s is not an unclaimed reservation", ErrIgnored, attempt, j.Name)
	}
	detail := fmt.Sprintf("%s was launched but never started; see the launcher's log", j.LaunchName())
	j = j.begin(now)
	if j = j.fruitless(); j.Fruitless >= maxFruitless {
		return j.noProgress(detail), nil
	}
	return j.allocate().reserved(CauseUnclaimed, detail), nil
}

// Cancel ends a job by a person's will.
func (j Job) Cancel(detail string, now time.Time) (Job, error) {
	if j.State.Terminal() {
		return j, fmt.Errorf("%w: %s %s already", ErrIgnored, j.Name, j.State)
	}
	return j.begin(now).moveTo(Cancelled, CausePerson, detail, events.TypeJobCancelled), nil
}

// Retry starts an ended or interrupted job again by a person's will, with fresh budgets. The next
// attempt is reserved for the launcher; where there is none it is spent to fence the old ones, and
// the next `reprieve run` takes the one behind it.
//
// ErrIgnored if it was retried and nobody has started since.
func (j Job) Retry(now time.Time) (Job, error) {
	if (j.State == Interrupted || j.State == Resuming) && j.Cause == CausePerson && len(j.Claims) == 0 {
		return j, fmt.Errorf("%w: %s was retried", ErrIgnored, j.Name)
	}
	if !j.State.Terminal() && j.State != Interrupted {
		return j, fmt.Errorf("%w: %s is %s: only a job that has ended or is interrupted can be retried; cancel it first", ErrInvalid, j.Name, j.State)
	}
	j = j.begin(now).allocate()
	j.Preemptions, j.Failures, j.Fruitless = 0, 0, 0
	if j.Restarter == RestarterReprieve {
		return j.reserved(CausePerson, "retried"), nil
	}
	return j.moveTo(Interrupted, CausePerson, "retried; run the job's command again", events.TypeJobInterrupted), nil
}

// DeadlinePassed returns a preempting job to running when the machine outlived its notice by slack,
// unless a later one stands.
func (j Job) DeadlinePassed(claim string, slack time.Duration, now time.Time) (Job, error) {
	if !j.Current(claim) {
		return j, j.superseded()
	}
	if j.State != Preempting || j.Notice.Deadline == nil || now.Before(j.Notice.Deadline.Add(slack)) {
		return j, fmt.Errorf("%w: no deadline has passed", ErrIgnored)
	}
	return j.begin(now).standDown("the machine outlived its notice", now), nil
}

// allocate takes the next attempt number. Nobody holds it yet.
func (j Job) allocate() Job {
	j.Attempt++
	j.Claims = nil
	j.Base = nil
	return j
}

// start gives the attempt to c. What was seen of the same machine stays seen.
func (j Job) start(c Claim) Job {
	j.Claims = []Claim{c}
	seen := j.Seen
	j.Seen = nil
	for _, n := range seen {
		if n.Node() == c.Node {
			j.Seen = append(j.Seen, n)
		}
	}
	return j.moveTo(Running, "", "", events.TypeJobStarted)
}

func (j Job) reserved(cause, detail string) Job {
	return j.moveTo(Resuming, cause, detail, events.TypeJobResuming)
}

// preempted ends the attempt through no fault of the job.
func (j Job) preempted(cause, detail string) Job {
	j.Preemptions++
	if j.Launch != nil && j.Launch.Budget.Preemptions != nil && j.Preemptions > *j.Launch.Budget.Preemptions {
		return j.moveTo(Failed, cause, fmt.Sprintf("%s; that was preemption %d of at most %d", detail, j.Preemptions, *j.Launch.Budget.Preemptions), events.TypeJobFailed)
	}
	return j.interrupted(cause, detail)
}

// interrupted ends the attempt but not the job, unless it was one fruitless attempt too many.
func (j Job) interrupted(cause, detail string) Job {
	if j = j.fruitless(); j.Fruitless >= maxFruitless {
		return j.noProgress(detail)
	}
	j = j.moveTo(Interrupted, cause, detail, events.TypeJobInterrupted)
	if cause == CauseExit {
		at := j.Updated.Add(j.backoff())
		j.RetryAt = &at
	}
	return j
}

// fruitless counts the attempt that is ending, unless it committed a checkpoint.
func (j Job) fruitless() Job {
	if n := len(j.Checkpoints); n > 0 && j.Checkpoints[n-1].Attempt == j.Attempt {
		j.Fruitless = 0
		return j
	}
	j.Fruitless++
	return j
}

func (j Job) noProgress(detail string) Job {
	return j.moveTo(Failed, CauseNoProgress,
		fmt.Sprintf("%d attempts in a row committed no checkpoint; the last: %s", j.Fruitless, detail), events.TypeJobFailed)
}

// reported reports whether the claimant itself has ended its attempt, as far as the record can
// tell: nobody else gives these causes. Whoever repeats a write of unknown outcome needs it.
func (j Job) reported(claim string) bool {
	if !j.Claimed(claim) || j.State != Interrupted && j.State != Failed {
		return false
	}
	switch j.Cause {
	case CauseExit, CauseSigterm, CauseNoProgress:
		return true
	}
	return events.Kind(j.Cause).Effect() == events.EffectStop
}

func (j Job) superseded() error {
	return fmt.Errorf("%w: %s is %s at attempt %d", ErrSuperseded, j.Name, j.State, j.Attempt)
}
