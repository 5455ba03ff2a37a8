package operator_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/onceward/onceward/internal/operator"
)

const id = "0199f3c4-7b1e-7c3a-9a51-3f0c2d1e4b5a"

func TestAnEventIsNamedByItsKeyOrItsUUID(t *testing.T) {
	key, err := operator.ParseName("payments:" + id)
	require.NoError(t, err)
	require.Equal(t, operator.Name{Namespace: "payments", ID: uuid.MustParse(id)}, key)
	require.Equal(t, "payments:"+id, key.String())
	require.True(t, key.Is("payments"))
	require.False(t, key.Is("orders"))

	alone, err := operator.ParseName(id)
	require.NoError(t, err)
	require.True(t, alone.Bare)
	require.Equal(t, id, alone.String())
	require.True(t, alone.Is("orders"), "the namespace is not known")

	var unclear *operator.UnclearError
	_, err = operator.ParseName("payments")
	require.ErrorAs(t, err, &unclear)
	require.ErrorContains(t, err, operator.KeyExample)
}

func TestAKeyThatIsNoneIsNamedByItsUUID(t *testing.T) {
	require.Equal(t, id, operator.NameText("No Namespace", uuid.MustParse(id)))
	require.Equal(t, "No Namespace:"+id, operator.KeyText("No Namespace", uuid.MustParse(id)))
}

func TestASelectionWithoutKeysHasAnEmptyList(t *testing.T) {
	require.NotNil(t, operator.Selection{}.IDs(), "NULL is no empty array in SQL")
	require.False(t, operator.Selection{}.Filtered())
	require.True(t, operator.Selection{EventType: "OrderPaid"}.Filtered())
}
