package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/reprieve-dev/reprieve/functions/internal/app"
)

func serveCommand(g *globals) *cobra.Command {
	s := &app.Server{}
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the control plane: resumes jobs, watches heartbeats, takes in notices", Args: cobra.NoArgs,
		Long: `serve consumes events from the bus, resumes interrupted jobs, and looks every --watch-interval
for what events should have caused and did not. It keeps no state of its own: any number of
replicas may run on one store and bus, and all of them may be down without a checkpoint being lost.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.Settings = g.Settings
			if s.Bus == app.NoBus {
				s.Bus = "nats+embedded://"
			}
			s.Up = func(e app.Endpoints) {
				_ = g.print(cmd, e, func() string {
					return fmt.Sprintf("control plane is up: %s\non the nodes:        reprieve run --bus %s ...\n", e.HTTP, e.Bus)
				})
			}
			return s.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.Listen, "listen", "127.0.0.1:8686", "HTTP address; POST /events, POST /notices/aws, /healthz, /readyz, /metrics")
	f.StringVar(&s.Token, "token", "", "bearer token of POST /events and /notices; required unless bound to loopback")
	f.DurationVar(&s.LaunchDeadline, "launch-deadline", app.DefaultLaunchDeadline, "a launched attempt that has not started by then is looked at, and passed over if it is gone")
	f.DurationVar(&s.WatchInterval, "watch-interval", 10*time.Second, "how often the watch pass runs")
	return cmd
}
