package main

import (
	"fmt"
	"os"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/urfave/cli/v2"

	"github.com/onceward/onceward/internal/operator"
	"github.com/onceward/onceward/internal/operator/settings"
	"github.com/onceward/onceward/internal/secret"
	"github.com/onceward/onceward/relay"
	"github.com/onceward/onceward/relay/config"
)

// configFlag is of a command that wants topics of that file, and another login than the relay's.
func configFlag() cli.Flag {
	return &cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "take routes and brokers from the relay's configuration in `FILE`, and not its database: that is of --dsn, --dsn-file or " + dsnVariable}
}

// ownConfigFlag is [configFlag] of a command that is about that file, and looks for it where the relay does.
func ownConfigFlag() cli.Flag {
	return &cli.PathFlag{Name: "config", Aliases: []string{"c"}, Usage: "`FILE` with the relay's configuration", Value: "relay.yaml"}
}

func configCommand() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "check or print a relay's configuration",
		Subcommands: []*cli.Command{
			{
				Name: "check", Usage: "say whether the relay would take it; connects to nothing",
				Flags:  []cli.Flag{ownConfigFlag(), outputFlag()},
				Action: configCheck,
			},
			{
				Name: "print", Usage: "print it as the relay sees it, with the environment and all defaults, and without secrets",
				Flags:  []cli.Flag{ownConfigFlag(), outputFlag()},
				Action: configPrint,
			},
		},
	}
}

// configReport is the JSON answer of config check.
type configReport struct {
	File        string             `json:"file"`
	OK          bool               `json:"ok"`
	Problems    []operator.Problem `json:"problems"`
	Notes       []string           `json:"notes"`
	Relay       string             `json:"relay,omitempty"`
	Slot        string             `json:"slot,omitempty"`
	Publication string             `json:"publication,omitempty"`
}

func configCheck(c *cli.Context) error {
	if err := wantConfig(c); err != nil {
		return err
	}
	cfg, found, err := config.Check(c.String("config"), os.Environ())
	if err != nil {
		return err
	}
	report := configReport{
		File: c.String("config"), OK: len(found.Problems) == 0,
		Problems: operator.Problems(found.Problems...), Notes: operator.NotNil(found.Notes),
	}
	if report.OK {
		report.Relay, report.Slot, report.Publication = cfg.Name, cfg.SlotName(), cfg.PublicationName()
	}
	return judge(write(c, report, printConfig), !report.OK)
}

func printConfig(p *page, r configReport) {
	if r.OK {
		p.line("%s is fine: relay %s, slot %s, publication %s", r.File, r.Relay, r.Slot, r.Publication)
	}
	for _, problem := range r.Problems {
		p.line("! %s", problem)
	}
	for _, note := range r.Notes {
		p.line("note: %s", note)
	}
}

// wantConfig checks a call that reads --config.
func wantConfig(c *cli.Context) error {
	if err := checkOutput(c); err != nil {
		return err
	}
	if c.String("config") == "" {
		return usage("%s: --config is empty; want the relay's configuration file", c.Command.HelpName)
	}
	if c.Command.ArgsUsage == "" && c.Args().Present() {
		return usage("%s takes no argument, got %s", c.Command.HelpName, secret.Argument(c.Args().First()))
	}
	return nil
}

// loadConfig reads the file of --config over the defaults and under the
// environment, as the relay does.
func loadConfig(c *cli.Context) (relay.Config, error) {
	if err := wantConfig(c); err != nil {
		return relay.Config{}, err
	}
	return config.Load(c.String("config"), os.Environ())
}

func configPrint(c *cli.Context) error {
	cfg, err := loadConfig(c)
	if err != nil {
		return err
	}
	values := settings.Shown(cfg)
	text, err := yaml.Parser().Marshal(values)
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return answer(c, values, func(p *page, _ map[string]any) { p.block(string(text)) })
}
