package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/functions/internal/app"
	"github.com/reprieve-dev/reprieve/handlers"
)

func runCommand(g *globals, code *int) *cobra.Command {
	o := app.RunOptions{}
	var onNotice, restarter, launch, grace string
	cmd := &cobra.Command{
		Use:   "run --job NAME --store URL [flags] -- COMMAND [ARG...]",
		Short: "Run a training command so that it survives preemption",
		Long: `run claims the job's next attempt, restores the newest checkpoint that verifies, starts COMMAND,
makes every checkpoint that it writes durable, and on a preemption notice or SIGTERM gets one
more durable before the machine goes away. It is a good PID 1.

The command learns where to go on from its environment: REPRIEVE_RESUMED (0 or 1),
REPRIEVE_RESUME_PATH, REPRIEVE_RESUME_STEP; also REPRIEVE_JOB, REPRIEVE_RUN_ID, REPRIEVE_ATTEMPT,
REPRIEVE_CHECKPOINT_DIR and REPRIEVE_SOCKET.

Exit code: the command's own; 75 preempted and durable; 76 preempted, newest state not durable;
73 another attempt holds the job or replaced this one; 69 store unavailable; 64 wrong usage.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() != 0 {
				return usage(cmd, errors.New("COMMAND is missing: write it after --"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Argv = args
			if o.Job == "" {
				return usage(cmd, errors.New("--job is missing (or set REPRIEVE_JOB)"))
			}
			if err := handlers.CheckName(o.Job); err != nil {
				return fmt.Errorf("--job: %w", err)
			}
			spec, err := app.ReadLaunch(launch)
			if err != nil {
				return err
			}
			o.Launch = spec
			switch o.OnNotice = onNotice; onNotice {
			case "", "stop", "keep":
			default:
				return fmt.Errorf("%w: --on-notice %q: use stop or keep", handlers.ErrInvalid, onNotice)
			}
			switch restarter {
			case "auto":
				o.Restarter = handlers.RestarterNone
				if spec != nil {
					o.Restarter = handlers.RestarterReprieve
				}
			case "reprieve", "platform", "none":
				o.Restarter = handlers.Restarter(restarter)
			default:
				return fmt.Errorf("%w: --restarter %q: use auto, reprieve, platform or none", handlers.ErrInvalid, restarter)
			}
			if o.Restarter == handlers.RestarterReprieve && spec == nil && o.Attempt == 0 {
				return fmt.Errorf("%w: --restarter reprieve needs --launch FILE: how else would the job be started again", handlers.ErrInvalid)
			}
			o.Grace = 30 * time.Second // Kubernetes' default
			if grace != "auto" {
				if o.Grace, err = time.ParseDuration(grace); err != nil || o.Grace <= 0 {
					return fmt.Errorf("%w: --grace %q: write auto or a duration such as 25s", handlers.ErrInvalid, grace)
				}
			}
			if *code, err = app.Run(cmd.Context(), g.Settings, o); err != nil {
				*code = 0
				return err
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Job, "job", "", "name of the job (required)")
	f.StringVar(&o.Dir, "checkpoint-dir", "./checkpoints", "where the command writes its checkpoints")
	f.StringVar(&o.Framework, "framework", "auto", "what a checkpoint looks like: auto, torch, generic (a file or directory renamed into place, or --marker)")
	f.StringVar(&o.Marker, "marker", "", "generic: a checkpoint is complete when a file of this name is in it (see docs/run.md)")
	f.StringVar(&o.Trigger, "trigger", "auto", "how the command is asked for a checkpoint: auto, signal:NAME[@ranks|child|all], exec:CMD, http:URL, file:PATH, none")
	f.StringVar(&onNotice, "on-notice", "", "stop or keep: what follows the checkpoint (default: stop when the machine goes away, keep otherwise)")
	f.StringVar(&o.Provider, "provider", "auto", "whose notices to listen for: auto, aws, none")
	f.StringVar(&o.MetadataEndpoint, "metadata-endpoint", "", "URL of the metadata service, if it is not the provider's own")
	f.StringVar(&grace, "grace", "auto", "what SIGTERM leaves until SIGKILL (auto: 30s)")
	f.StringVar(&restarter, "restarter", "auto", "who starts the job again: auto (reprieve if there is a launch spec), reprieve, platform, none")
	f.StringVar(&launch, "launch", "", "launch spec (YAML): how Reprieve starts this job again")
	f.IntVar(&o.Attempt, "attempt", 0, "the attempt that this process was launched for; launchers set REPRIEVE_ATTEMPT")
	f.BoolVar(&o.AllowUnprotected, "allow-unprotected", false, "start the command also when the store is unavailable")
	return cmd
}
