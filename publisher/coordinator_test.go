package publisher_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onceward/onceward/publisher"
)

func TestErrorsOfTheCoordinatorAreExplained(t *testing.T) {
	for _, tc := range []struct {
		key  kmsg.Key
		code *kerr.Error
		want string
	}{
		{kmsg.InitProducerID, kerr.InvalidTransactionTimeout, "transaction.max.timeout.ms"},
		{kmsg.InitProducerID, kerr.TransactionalIDAuthorizationFailed, "--transactional-id onceward-1-orders"},
		{kmsg.OffsetCommit, kerr.GroupAuthorizationFailed, "--operation Read --group onceward-1-orders"},
		{kmsg.OffsetCommit, kerr.TopicAuthorizationFailed, "--topic onceward.checkpoint"},
		{kmsg.OffsetFetch, kerr.GroupAuthorizationFailed, "--operation Read --group onceward-1-orders"},
		{kmsg.AddOffsetsToTxn, kerr.GroupAuthorizationFailed, "--operation Read --group onceward-1-orders"},
		{kmsg.TxnOffsetCommit, kerr.TopicAuthorizationFailed, "--topic onceward.checkpoint"},
		{kmsg.EndTxn, kerr.InvalidProducerIDMapping, "transactional.id.expiration.ms"},
		{kmsg.EndTxn, kerr.ProducerFenced, "taken over"},
		{kmsg.EndTxn, kerr.InvalidProducerEpoch, "taken over"},
	} {
		t.Run(tc.key.Name()+" "+tc.code.Message, func(t *testing.T) {
			c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
			c.checkpointTopic()
			c.Fault(kfake.Fault{Keys: []kmsg.Key{tc.key}, Err: tc.code})
			p, err := publisher.NewTransactional(within(t), c.config(), oneSlot())
			if err == nil {
				defer func() { require.NoError(t, p.Close()) }()
				transact(t, p, "a", 0, 0)
				err = p.Commit(within(t), at(1))
			}
			require.ErrorContains(t, err, tc.want)
			require.ErrorIs(t, err, sarama.KError(tc.code.Code))
			require.Equal(t, tc.code == kerr.ProducerFenced || tc.code == kerr.InvalidProducerEpoch, strings.Contains(err.Error(), publisher.ErrFenced.Error()))
		})
	}
}

// What passes is waited for: the coordinator moves, loads, is busy with the
// transaction before, or has another's offset pending.
func TestPassingErrorsOfTheCoordinatorAreRiddenOut(t *testing.T) {
	for _, tc := range []struct {
		key  kmsg.Key
		code *kerr.Error
	}{
		{kmsg.InitProducerID, kerr.ConcurrentTransactions},
		{kmsg.OffsetCommit, kerr.NotCoordinator},
		{kmsg.OffsetCommit, kerr.RequestTimedOut},
		{kmsg.OffsetCommit, kerr.UnknownTopicOrPartition},
		{kmsg.OffsetFetch, kerr.UnstableOffsetCommit},
		{kmsg.OffsetFetch, kerr.CoordinatorLoadInProgress},
		{kmsg.OffsetFetch, kerr.NotCoordinator},
		{kmsg.AddPartitionsToTxn, kerr.ConcurrentTransactions},
		{kmsg.AddOffsetsToTxn, kerr.CoordinatorNotAvailable},
		{kmsg.TxnOffsetCommit, kerr.CoordinatorLoadInProgress},
		{kmsg.EndTxn, kerr.ConcurrentTransactions},
	} {
		t.Run(tc.key.Name()+" "+tc.code.Message, func(t *testing.T) {
			c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
			c.checkpointTopic()
			fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{tc.key}, Err: tc.code, Count: 3})
			p := startTransactional(t, c.config(), oneSlot())
			transact(t, p, "a", 0, 9)
			require.NoError(t, p.Commit(within(t), at(10)))
			require.NoError(t, p.Err())
			require.Positive(t, fault.Hits())
			transact(t, p, "a", 10, 19)
			require.NoError(t, p.Commit(within(t), at(20)))
			require.Equal(t, numbers(0, 19), c.committed("shop.order"))
		})
	}
}

// An answer that does not name the probe acknowledges nothing.
func TestProbeIsWrittenUntilItIsAcknowledged(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	var asked atomic.Int64
	c.ControlKey(int16(kmsg.OffsetCommit), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		n := asked.Add(1)
		return request.ResponseKind(), nil, n == 1
	})
	startTransactional(t, c.config(), oneSlot())
	require.EqualValues(t, 2, asked.Load())
}

// How a Transactional authenticates, and to whom, is what the Publisher does.
func TestTransactionsUnderSASLWithTheLeastRights(t *testing.T) {
	allow := func(resource kmsg.ACLResourceType, name string, op kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true}
	}
	id := oneSlot().ID
	rights := []kfake.ACL{
		allow(kmsg.ACLResourceTypeTransactionalId, id, kmsg.ACLOperationWrite),
		allow(kmsg.ACLResourceTypeTransactionalId, id, kmsg.ACLOperationDescribe),
		allow(kmsg.ACLResourceTypeGroup, id, kmsg.ACLOperationRead),
		allow(kmsg.ACLResourceTypeTopic, publisher.DefaultCheckpointTopic, kmsg.ACLOperationRead),
		allow(kmsg.ACLResourceTypeTopic, publisher.DefaultCheckpointTopic, kmsg.ACLOperationDescribe),
		allow(kmsg.ACLResourceTypeTopic, "shop.order", kmsg.ACLOperationWrite),
		allow(kmsg.ACLResourceTypeTopic, "shop.order", kmsg.ACLOperationDescribe),
	}
	begin := func(t *testing.T, rights []kfake.ACL) error {
		c := newCluster(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.SeedTopics(1, "shop.order"),
			kfake.Superuser("PLAIN", "admin", "admin"), kfake.User("PLAIN", "relay", "secret", rights...))
		c.checkpointTopic()
		cfg := c.config()
		cfg.SASL, cfg.Insecure = publisher.SASL{Mechanism: "PLAIN", Username: "relay", Password: "secret"}, true
		p, err := publisher.NewTransactional(within(t), cfg, oneSlot())
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, p.Close()) }()
		if err := p.Publish(within(t), event(1, "a", "1")); err != nil {
			return err
		}
		return p.Commit(within(t), at(1))
	}
	require.NoError(t, begin(t, rights))
	for missing, cure := range map[int]string{
		0: "--allow-principal User:relay --operation Write --operation Describe --transactional-id " + id,
		2: "--allow-principal User:relay --operation Read --group " + id,
		3: "--operation Read --operation Describe",
		5: "--allow-principal User:relay --operation Write",
	} {
		without := append(append([]kfake.ACL(nil), rights[:missing]...), rights[missing+1:]...)
		err := begin(t, without)
		require.ErrorContains(t, err, cure, "without %+v", rights[missing])
	}
}

// A coordinator that does not answer for a partition has not said that it is in the
// transaction: it is asked again before anything is written there.
func TestPartitionsThatAreNotAnsweredAreAddedAgain(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "shop.order"))
	c.checkpointTopic()
	p := startTransactional(t, c.config(), oneSlot())
	c.ControlKey(int16(kmsg.AddPartitionsToTxn), func(request kmsg.Request) (kmsg.Response, error, bool) {
		return request.ResponseKind(), nil, true
	})
	added := c.asked(kmsg.AddPartitionsToTxn)
	transact(t, p, "a", 0, 9)
	require.NoError(t, p.Commit(within(t), at(10)))
	require.Equal(t, 1, added(), "beside the one that was not answered")
}
