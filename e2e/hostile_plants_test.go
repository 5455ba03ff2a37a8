//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/houserules"
)

// ours is what our SQL names: functions, operators and types.
type ours struct {
	functions, operators, types []string
}

var (
	calledName = regexp.MustCompile(`\b([a-z_][a-z0-9_]*) ?\(`)
	usedSigns  = regexp.MustCompile(`[-+*/<>=~!@#%^&|]+`)
	castName   = regexp.MustCompile(`::(?:pg_catalog\.)?"?([a-z_][a-z0-9_]*)`)
	sqlText    = regexp.MustCompile(`'[^']*'|--[^\n]*`)
)

// namesOfOurs reads all SQL of the repository. A word too many does no harm: what
// the server does not know is not planted.
func namesOfOurs(t *testing.T) ours {
	t.Helper()
	statements, err := houserules.Statements("..")
	require.NoError(t, err)
	var o ours
	for _, s := range statements {
		text := sqlText.ReplaceAllString(s.Text, "''")
		for _, m := range calledName.FindAllStringSubmatch(text, -1) {
			o.functions = append(o.functions, m[1])
		}
		o.operators = append(o.operators, usedSigns.FindAllString(strings.ReplaceAll(text, "::", " "), -1)...)
		for _, m := range castName.FindAllStringSubmatch(text, -1) {
			o.types = append(o.types, m[1])
		}
	}
	o.operators = append(o.operators, "~~", "<>") // LIKE, NOT IN
	for _, names := range []*[]string{&o.functions, &o.operators, &o.types} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	require.Contains(t, o.functions, "hashtextextended")
	require.Contains(t, o.operators, "->>")
	require.Contains(t, o.types, "uuid")
	return o
}

// hostile is a role that owns the database and nothing else, as applications do,
// and a connection of it.
type hostile struct {
	*environment
	role string
	conn *pgx.Conn
}

// newHostile gives an environment's database to the role. The environment's own pool, with
// which the test looks on, keeps out of the traps.
func newHostile(t *testing.T, version string) *hostile {
	t.Helper()
	server := postgres(t, version)
	role := fmt.Sprintf("hostile_%d", os.Getpid())
	// Registered first, so that it comes after the environment has dropped the database.
	t.Cleanup(func() {
		require.NoError(t, (&environment{server: server}).superuser(context.Background(), "DROP ROLE "+role)) // the test's own context has ended
	})
	w := newEnvironmentOn(t, server)
	conf := w.pool.Config()
	w.pool.Close()
	conf.ConnConfig.RuntimeParams["search_path"] = "pg_catalog, pg_temp"
	var err error
	w.pool, err = pgxpool.NewWithConfig(t.Context(), conf)
	require.NoError(t, err)
	w.execute("CREATE ROLE " + role + " LOGIN PASSWORD '" + loginPassword + "'")
	w.execute("ALTER DATABASE " + w.name + " OWNER TO " + role)
	h := &hostile{environment: w, role: role}
	own, err := pgx.ParseConfig(w.dsn(role))
	require.NoError(t, err)
	own.RuntimeParams["search_path"] = "pg_catalog, pg_temp"
	h.conn, err = pgx.ConnectConfig(t.Context(), own)
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.conn.Close(context.Background()) })
	return h
}

// trap makes what every planted object calls, and what makes them. A trap that was
// stepped into says so in the server's log as well, because the transaction may be read-only
// or be rolled back.
const trap = `CREATE TABLE public.loot (what text, who text, login text);
GRANT INSERT ON public.loot TO PUBLIC;
CREATE FUNCTION public.trap(what pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS $trap$
BEGIN
  RAISE LOG 'LOOT % % as %', pg_catalog.current_database(), what, current_user;
  INSERT INTO public.loot VALUES (what, current_user, session_user);
  RETURN true;
EXCEPTION WHEN OTHERS THEN RETURN true;
END $trap$;
CREATE FUNCTION pg_temp.plant(statements text[]) RETURNS bigint LANGUAGE plpgsql AS $plant$
DECLARE s text; n bigint := 0;
BEGIN
  FOREACH s IN ARRAY statements LOOP
    BEGIN EXECUTE s; n := n + 1; EXCEPTION WHEN OTHERS THEN NULL; END;
  END LOOP;
  RETURN n;
END $plant$`

// plant plants an overload for whatever our SQL names: of each function and operator with the
// very signature that pg_catalog has, and with types that fit better; and domains with
// the names of types.
func (h *hostile) plant(o ours) {
	t := h.t
	t.Helper()
	_, err := h.conn.Exec(t.Context(), trap)
	require.NoError(t, err)
	made := map[string]int64{}
	for kind, statements := range map[string][]string{"functions": h.functions(o.functions), "operators": h.operators(o.operators), "types": domains(o.types)} {
		var n int64
		require.NoError(t, h.conn.QueryRow(t.Context(), "SELECT pg_temp.plant($1)", statements).Scan(&n))
		made[kind] = n
	}
	t.Log("planted", made)
	require.Greater(t, made["functions"], int64(200))
	require.Greater(t, made["operators"], int64(500))
	require.Greater(t, made["types"], int64(5))
	for _, must := range []string{"hashtextextended(text, integer)", "hashtextextended(text, bigint)", "unnest(uuid[])", "count()", "clock_timestamp()", "set_config(text, text, boolean)"} {
		require.Equal(t, "public", scalar[string](h.environment, `SELECT COALESCE((SELECT 'public' FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
			AND p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')' = replace($1, 'count()', 'count(*)')
			OR p.pronamespace = 'public'::regnamespace AND p.oid = to_regprocedure('public.' || $1)), '')`, must), must)
	}
}

// better are types that fit a call better than the one that pg_catalog declares.
var better = map[string][]string{
	"bigint": {"integer"}, "text": {"character varying", "name"}, "name": {"text"}, "regclass": {"oid"}, "oid": {"regclass"},
	"anyarray":                 {"text[]", "uuid[]", "bigint[]", "integer[]", "bytea[]", "boolean[]", "smallint[]", "interval[]", "timestamp with time zone[]"},
	"anyelement":               {"text", "uuid", "bigint", "integer", "boolean"},
	"anynonarray":              {"text", "uuid", "bigint", "boolean"},
	"anycompatible":            {"text", "uuid"},
	"\"any\"":                  {"text", "uuid", "bigint", "timestamp with time zone", "name"},
	"numeric":                  {"bigint", "integer"},
	"jsonb":                    {"text"},
	"pg_lsn":                   {"text"},
	"timestamp with time zone": {"timestamp without time zone"},
}

// functions returns the statements that plant functions and aggregates.
func (h *hostile) functions(names []string) []string {
	rows, err := h.conn.Query(h.t.Context(), `SELECT p.proname::text, p.prokind::text, p.proretset, format_type(p.prorettype, NULL),
		ARRAY(SELECT format_type(a.t, NULL) FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (t, n) ORDER BY n)
		FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY($1) AND p.prokind <> 'p'`, names)
	require.NoError(h.t, err)
	var p planted
	var out []string
	_, err = pgx.ForEachRow(rows, []any{&p.name, &p.kind, &p.set, &p.result, &p.args}, func() error {
		if slices.Contains(p.args, "internal") || slices.Contains(p.args, "cstring") {
			return nil
		}
		for _, overload := range overloads(p.args) {
			other := p
			other.args = overload
			out = append(out, other.statements(len(out))...)
		}
		return nil
	})
	require.NoError(h.t, err)
	return out
}

// overloads are the signature itself, and those with one type replaced wherever
// it stands.
func overloads(args []string) [][]string {
	out := [][]string{args}
	for from, others := range better {
		if !slices.Contains(args, from) {
			continue
		}
		for _, to := range others {
			other := slices.Clone(args)
			for i := range other {
				if other[i] == from {
					other[i] = to
				}
			}
			out = append(out, other)
		}
	}
	if slices.Contains(args, "\"any\"") { // variadic
		for n := 1; n <= 4; n++ {
			out = append(out, slices.Repeat([]string{"text"}, n))
		}
	}
	return out
}

// planted is a function as pg_catalog has it, or with other arguments.
type planted struct {
	name, kind, result string
	set                bool
	args               []string
}

// statements returns what makes it; n is a number of its own. One that stands for
// an aggregate is one.
func (p planted) statements(n int) []string {
	name, result, args := p.name, p.result, p.args
	list := strings.Join(args, ", ")
	what := strings.ReplaceAll(name+"("+list+")", "'", "")
	if strings.HasPrefix(result, "any") && !strings.Contains(list, "any") {
		result = strings.TrimSuffix(args[0], "[]") // what unnest and max return
	}
	if result == "record" || result == "internal" {
		result = "text"
	}
	if p.kind == "a" {
		step := fmt.Sprintf("public.step_%d", n)
		state := strings.TrimPrefix(list, "\"any\"")
		full := result
		if state != "" {
			full += ", " + state
		}
		if list == "" {
			list = "*"
		}
		return []string{
			fmt.Sprintf(`CREATE FUNCTION %s(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM public.trap('%s'); RETURN $1; END $f$`, step, full, result, what),
			fmt.Sprintf(`CREATE AGGREGATE public.%s(%s) (SFUNC = %s, STYPE = %s)`, name, list, step, result),
		}
	}
	returns, end := result, "RETURN NULL"
	if p.set {
		returns, end = "SETOF "+result, "RETURN"
	}
	return []string{fmt.Sprintf(`CREATE FUNCTION public.%s(%s) RETURNS %s LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN PERFORM public.trap('%s'); %s; END $f$`,
		name, list, returns, what, end)}
}

// operands are the types between which operators are planted that pg_catalog lacks.
var operands = []string{"text", "character varying", "name", "uuid", "bigint", "integer", "numeric", "oid", "regclass", "interval", "timestamp with time zone", "jsonb", "bytea"}

// operators returns the statements that plant operators.
func (h *hostile) operators(signs []string) []string {
	rows, err := h.conn.Query(h.t.Context(), `SELECT o.oprname::text, format_type(o.oprleft, NULL), format_type(o.oprright, NULL), format_type(o.oprresult, NULL)
		FROM pg_operator o WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprname = ANY($1) AND o.oprleft <> 0`, signs)
	require.NoError(h.t, err)
	var out []string
	plant := func(sign, left, right, result string) {
		trap := fmt.Sprintf("public.sign_%d", len(out))
		out = append(out, fmt.Sprintf(`CREATE FUNCTION %s(%s, %s) RETURNS %s LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN PERFORM public.trap('%s %s %s'); RETURN NULL; END $f$`,
			trap, left, right, result, left, sign, right),
			fmt.Sprintf("CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = %s)", sign, left, right, trap))
	}
	known := map[string]bool{}
	var sign, left, right, result string
	_, err = pgx.ForEachRow(rows, []any{&sign, &left, &right, &result}, func() error {
		known[sign], known[sign+left+right] = true, true
		plant(sign, left, right, result)
		return nil
	})
	require.NoError(h.t, err)
	for _, sign := range signs {
		for i := 0; known[sign] && i < len(operands)*len(operands); i++ {
			left, right := operands[i/len(operands)], operands[i%len(operands)]
			if !known[sign+left+right] {
				plant(sign, left, right, "boolean")
			}
		}
	}
	return out
}

// domains returns the statements that plant domains with the names of types.
func domains(types []string) []string {
	var out []string
	for _, name := range types {
		out = append(out, fmt.Sprintf(`CREATE DOMAIN public."%[1]s" AS pg_catalog."%[1]s" CHECK (public.trap('type %[1]s'))`, name))
	}
	return out
}

// loot returns what was recorded, by the trap's name and the role that stepped
// into it.
func (h *hostile) loot() []string {
	h.t.Helper()
	found := scalar[[]string](h.environment, `SELECT ARRAY(SELECT DISTINCT what || ' as ' || who FROM public.loot)`)
	text, err := os.ReadFile(h.server.LogFile())
	require.NoError(h.t, err)
	for _, m := range regexp.MustCompile(`LOOT `+h.name+` (.*)`).FindAllStringSubmatch(string(text), -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}
